"""From a fresh process, with nothing compiled, to the first pictures; and torch.compile's way."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_parts.setting import Setting, say
from bench_parts.timing import judged

COLD, CACHED = 60.0, 10.0
"""Seconds that the first use of a bucket may take, with nothing compiled and from the disk."""

STEADY = 1.1
START = 5.0
"""How many times longer torch.compile's way takes, for a picture and to the first."""

REGIONAL = "regional"
"""diffusers' own way to compile: each block that is repeated, once."""

_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "COMICGEN_CACHE")


def measure(setting: Setting) -> dict[str, Any]:
    """The first use of a bucket, everything fused: twice, with the same caches on disk.

    It is what the first pictures take longer than the same again, and compiling the kernels.
    """
    with tempfile.TemporaryDirectory() as caches:
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
    """Against diffusers with torch.compile in its mode max-autotune."""
    return _against("max-autotune", setting)


def measure_regional(setting: Setting) -> dict[str, Any]:
    """Against diffusers with its repeated blocks compiled, and its VAE's decoder."""
    return _against(REGIONAL, setting)


def _against(mode: str, setting: Setting) -> dict[str, Any]:
    arms = {}
    for name, arm in (("ours", "ours"), ("theirs", mode)):
        with tempfile.TemporaryDirectory() as caches:
            arms[name] = _child(arm, setting, Path(caches))
        say(f"{mode}: {name} {arms[name]}")
    start = arms["theirs"]["to the first pictures"] / arms["ours"]["to the first pictures"]
    steady = arms["theirs"]["theirs"]["median"] / arms["theirs"]["ours"]["median"]
    say(f"{mode}: theirs / ours {steady:.3f}, floor {STEADY}; to the first {start:.1f}")
    return {**arms, "steady": judged(steady, STEADY), "to the first": judged(start, START)}


def _child(arm: str, setting: Setting, caches: Path) -> dict[str, Any]:
    """What a process of its own tells that has these caches."""
    own = {name: str(caches / name) for name in _CACHES}
    command = [sys.executable, "-m", "bench_parts.child", arm, str(time.time())]
    done = subprocess.run(
        command,
        input=pickle.dumps(setting),
        stdout=subprocess.PIPE,
        env={**os.environ, **own},
        cwd=Path(__file__).parent.parent,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
