"""From a fresh process, with nothing compiled, to the first pictures; and torch.compile's way."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench_parts import stories
from bench_parts.setting import Setting, say
from bench_parts.timing import judged

COLD, CACHED = 60.0, 10.0
"""Seconds that the first use of a bucket may take, with nothing compiled and from the disk."""

STEADY = 1.1
START = 5.0
"""How many times longer torch.compile's way takes, for a picture and to the first."""

REGIONAL = "regional"
"""diffusers' own way to compile: each block that is repeated, once."""

LIMIT = 440.0
"""Seconds that their arm has in one go."""

COUNT = 8
"""Pictures, drawn side by side."""

FIRST = "to the first pictures"
UNFINISHED = "when its time was over"

_CACHES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "COMICGEN_CACHE",
)


def measure(setting: Setting) -> dict[str, Any]:
    """The first use of a bucket, everything fused: twice, with the same caches on disk.

    It is what the first pictures take longer than the same again, and compiling the kernels.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        cold, cached = (_child("ours", setting, Path(caches)) for _ in range(2))
    seconds = [each["kernels"] + each["first"] - each["again"] for each in (cold, cached)]
    say(f"cold     first use {seconds[0]:.1f} s, from the disk {seconds[1]:.1f} s")
    return {
        "with nothing": cold,
        "from the disk": cached,
        "first use with nothing": judged(seconds[0], COLD, most=True),
        "first use from the disk": judged(seconds[1], CACHED, most=True),
    }


def measure_reduced(setting: Setting) -> dict[str, Any]:
    """Against diffusers with torch.compile in its mode reduce-overhead."""
    return _against("reduce-overhead", setting)


def measure_tuned(setting: Setting) -> dict[str, Any]:
    """Against diffusers with torch.compile in its mode max-autotune, its VAE in reduce-overhead."""
    return _against("max-autotune", setting)


def measure_regional(setting: Setting) -> dict[str, Any]:
    """Against diffusers with its repeated blocks compiled, and its VAE's decoder."""
    return _against(REGIONAL, setting)


def _against(mode: str, setting: Setting) -> dict[str, Any]:
    """Both arms. What is known by then is kept where the results are, in case one never ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as passing:
        kept = setting.kept or Path(passing)
        kept.mkdir(parents=True, exist_ok=True)
        notes = kept / f"{mode}.json"
        told = json.loads(notes.read_text()) if notes.exists() else {}
        if not told:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
                told = {"ours": _command(setting, Path(caches)), "tries": []}
            shutil.rmtree(kept / mode, ignore_errors=True)  # of a try that left no notes
            notes.write_text(json.dumps(told))
        say(f"{mode}: ours {told['ours']}")
        theirs = _patiently(mode, setting, kept / mode, told)
        say(f"{mode}: theirs {theirs}")
        if theirs.get("ended") == UNFINISHED:
            notes.write_text(json.dumps(told))
        else:
            notes.unlink()
            shutil.rmtree(kept / mode, ignore_errors=True)
    if FIRST in theirs:
        start = theirs[FIRST] / told["ours"][FIRST]
        told["to the first"] = judged(start, START)
        say(f"{mode}: to the first pictures theirs / ours {start:.1f}, floor {START}")
    if "theirs" in theirs:
        steady = theirs["theirs"]["median"] / theirs["ours"]["median"]
        told["steady"] = judged(steady, STEADY)
        say(f"{mode}: theirs / ours {steady:.3f}, floor {STEADY}")
    return {**told, "theirs": theirs}


def _command(setting: Setting, caches: Path) -> dict[str, Any]:
    """Seconds from the start of `comicgen render`, with these caches, to each picture on disk."""
    storyboard = stories.one_panel(setting, COUNT)
    options = ["--output", str(caches / "drawn"), "--numerics", "fused", "--json"]
    device = ["--device", setting.environment.device]
    command = [sys.executable, "-m", "comicgen", "render", str(storyboard.path), *options, *device]
    begun, seconds = time.time(), list[float]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=_surroundings(caches)) as process:
        for line in process.stdout or ():
            if json.loads(line)["event"] == "drawn":
                seconds.append(round(time.time() - begun, 3))
    if len(seconds) != COUNT or process.returncode:
        raise RuntimeError(f"comicgen drew {len(seconds)} pictures and ended {process.returncode}")
    return {FIRST: seconds[-1], "to each": seconds, "to the end": round(time.time() - begun, 3)}


def _patiently(mode: str, setting: Setting, caches: Path, notes: dict[str, Any]) -> dict[str, Any]:
    """What their arm tells, or told before it died or its time was over.

    What it compiled in its time stays in `caches`, so that the part named once more goes on; then
    the seconds of its tries, which `notes` count, are added.
    """
    caches.mkdir(exist_ok=True)
    told = _child(mode, setting, caches, LIMIT)
    earlier = sum(notes["tries"])
    if FIRST in told:
        told[FIRST] = round(earlier + told[FIRST], 3)
        notes.setdefault(FIRST, told[FIRST])
    if FIRST in notes:
        told[FIRST] = notes[FIRST]  # of the try that came so far first
    if told.get("ended") == UNFINISHED:
        notes["tries"].append(LIMIT)
    return told


def _child(arm: str, setting: Setting, caches: Path, limit: float | None = None) -> dict[str, Any]:
    """What a process of its own tells last that has these caches, and how it ended if not well.

    Raises:
        RuntimeError: ours ended before it had told all.
    """
    command = [sys.executable, "-m", "bench_parts.child", arm, str(time.time())]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_surroundings(caches),
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )
    ended = {}
    try:
        out, _ = child.communicate(pickle.dumps(setting), limit)
    except subprocess.TimeoutExpired:
        if child.poll() is None:
            ended = {"ended": UNFINISHED}
        _kill(child)
        out, _ = child.communicate()
    finally:
        _kill(child)
    if child.returncode and not ended:
        ended = {"ended": f"with {child.returncode}"}
    lines = [
        line for line in out.splitlines(True) if line.startswith(b"{") and line.endswith(b"\n")
    ]
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if arm == "ours" and not told:
        raise RuntimeError(f"comicgen's process ended {ended.get('ended')}")
    return told | ended


def _surroundings(caches: Path) -> dict[str, str]:
    """Of a process that has these caches, and finds what this one does."""
    own = {name: str(caches / name) for name in _CACHES}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """With those that compile for it, and may outlive it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
