"""Time comicgen against diffusers' own pipelines on one GPU.

    python scripts/bench.py [PART]... [--json FILE]

steps    a step called and replayed, for 1, 2, 4, 8 and 16 pictures, also beside a ControlNet
pieces   a decode, a switch of LoRAs, and kernels of attention
single   one picture, from embeddings to its file
batch    1, 2, 4, 8 and 16 pictures side by side, to their files
control  the same beside a ControlNet
shares   where the time of one image goes, by kind of kernel
idle     the share of 200 pictures' time in which the GPU does nothing
cold     the first use of a bucket with nothing compiled, and from the disk
reduced  torch.compile in its mode reduce-overhead, from a cold start and steady
tuned    the same in its mode max-autotune, its VAE still in reduce-overhead
regional the same for the repeated blocks alone
memory   all graphs of five sizes against the largest alone, and 500 pictures
story    a storyboard of LoRA sets, sizes and ControlNets, from its YAML to the files on disk

Each takes less than eight minutes; `story` of 60 panels nearly so. With --json the results are
kept in a file: parts that are in it are not measured again unless they are named, so that what
was interrupted goes on. It ends with 1 where a figure misses its floor. `tuned` and its like give
torch.compile seven minutes; named once more, they go on with what was compiled until then, which
is kept beside the file.

Both arms run in one process and in turn, from the same files and in the same type. People read
the table on stderr, programs the JSON on stdout. An SDXL of random weights is written first;
--model keeps it in a folder for the next time, and --model pocket takes the embedded model, which
a CPU can draw with: --device cpu --size 192x128 --steps 2.
"""

import argparse
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import full_size
import torch
from bench_parts import batch, cold, idle, memory, pieces, shares, single, story
from bench_parts.setting import Setting, say
from bench_parts.theirs import quiet
from bench_parts.timing import matmul_ceiling

from comicgen import __version__, pocket
from comicgen.environment import current
from comicgen.sizes import read_size

PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "steps": pieces.measure_steps,
    "pieces": pieces.measure,
    "single": single.measure,
    "batch": batch.measure,
    "control": batch.measure_control,
    "shares": shares.measure,
    "idle": idle.measure,
    "cold": cold.measure,
    "reduced": cold.measure_reduced,
    "tuned": cold.measure_tuned,
    "regional": cold.measure_regional,
    "memory": memory.measure,
    "story": story.measure,
}

ON_A_GPU = ("shares", "idle", "cold", "reduced", "tuned", "regional", "memory")
"""Parts that a CPU has nothing to tell in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; how many figures missed their floor."""
    asked = _asked(arguments)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
    quiet()
    results = _kept(asked.json)
    with tempfile.TemporaryDirectory(prefix="comicgen-bench-") as folder:
        setting = _setting(asked, Path(folder))
        if any(each["setting"] != setting.to_json() for each in results.values()):
            sys.exit(f"{asked.json} holds what was measured otherwise; name another file")
        for part in asked.parts or [each for each in _all(setting) if each not in results]:
            machine = _machine(setting)
            if setting.environment.on_gpu:
                torch.cuda.empty_cache()  # of the matrices
            say(f"{setting.environment.label}; matmul {machine['matmul']}")
            measured = PARTS[part](setting)
            results[part] = {"machine": machine, "setting": setting.to_json(), **measured}
            if asked.json:
                _keep(asked.json, results)
    missed = [f"{part}: {name}" for part in results for name in _missed(results[part])]
    for each in missed:
        say(f"missed   {each}")
    print(json.dumps(results, indent=1))
    return len(missed)


def _all(setting: Setting) -> list[str]:
    on_gpu = setting.environment.on_gpu
    return [part for part in PARTS if on_gpu or part not in ON_A_GPU]


def _kept(file: Path | None) -> dict[str, Any]:
    if file is None or not file.exists():
        return {}
    kept: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return kept


def _keep(file: Path, results: dict[str, Any]) -> None:
    """Whole or not at all, should it be interrupted."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def _missed(value: Any, name: str = "") -> Iterator[str]:
    """The names of the figures in a result that are not what they must be."""
    if isinstance(value, dict):
        if value.get("met") is False:
            yield f"{name} {value['value']}, floor {value['floor']}"
        for key, each in value.items():
            yield from _missed(each, f"{name} {key}".strip())


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", default="1024x1024")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, help="instead of each part's own number")
    parser.add_argument("--panels", type=int, default=60, help="of the story")
    parser.add_argument(
        "--pictures",
        type=int,
        action="append",
        metavar="N",
        help="so many side by side, instead of all that steps, batch and control measure",
    )
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.parts) - set(PARTS)):
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    return asked


def _setting(asked: argparse.Namespace, folder: Path) -> Setting:
    environment = current(asked.device, None)
    if not environment.why_not_fused:
        environment = environment.drawing("fused")
    parts = _parts(asked.model, folder, torch.device(environment.device))
    size = read_size(asked.size, sample_size=0)
    kept = asked.json and asked.json.with_suffix(".kept").resolve()
    counts = tuple(asked.pictures or ())
    numbers = asked.steps, asked.rounds, asked.panels, counts
    return Setting(parts, environment, size, *numbers, folder, kept)


def _parts(model: str | None, folder: Path, device: torch.device) -> full_size.Parts:
    if model == "pocket":
        loras = full_size.parts_in(folder).loras
        full_size.write_loras(loras, pocket.MODEL, device)
        return full_size.Parts(pocket.MODEL, pocket.controlnet("lineart"), loras)
    home = Path(model).resolve() if model else folder / "full-size"
    parts = full_size.parts_in(home)
    return parts if parts.complete else full_size.write(home, device)


def _machine(setting: Setting) -> dict[str, Any]:
    device = setting.device
    on_gpu = device.type == "cuda"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "driver": _driver() if on_gpu else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "python": platform.python_version(),
        "comicgen": __version__,
        "peft": version("peft"),
        "pillow": version("pillow"),
        "matmul": matmul_ceiling(setting.dtype, device),
    }


def _driver() -> str | None:
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return next(iter(listed.splitlines()), None)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children and folders are ended first
    sys.exit(min(main(), 1))
