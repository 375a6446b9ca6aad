"""Time comicgen against diffusers' own pipelines on one GPU.

    python scripts/bench.py [pieces] [single] [batch] [story] [--json FILE]

pieces  a step called and replayed, a decode, a switch of LoRAs, and kernels of attention
single  one picture, from embeddings to pixels on the host
batch   1, 2, 4, 8 and 16 pictures side by side, with graphs and without
story   a storyboard of LoRA sets, sizes and ControlNets, from its YAML to the files on disk

It ends with 1 where a ratio misses its floor.

Both arms run in one process and in turn, from the same files and in the same type. People read
the table on stderr, programs the JSON on stdout. An SDXL of random weights is written first;
--model keeps it in a folder for the next time, and --model pocket takes the embedded model, which
a CPU can draw with: --device cpu --size 192x128 --steps 2.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import full_size
import torch
from bench_parts import batch, pieces, single, story
from bench_parts.setting import Setting, say
from bench_parts.theirs import quiet
from bench_parts.timing import matmul_ceiling

from comicgen import __version__, pocket
from comicgen.environment import current
from comicgen.sizes import read_size

PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "pieces": pieces.measure,
    "single": single.measure,
    "batch": batch.measure,
    "story": story.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; how many parts missed their floor."""
    asked = _asked(arguments)
    quiet()
    with tempfile.TemporaryDirectory(prefix="comicgen-bench-") as folder:
        setting = _setting(asked, Path(folder))
        results: dict[str, Any] = {"machine": _machine(setting), "setting": setting.to_json()}
        missed = 0
        say(f"{setting.environment.label}; matmul {results['machine']['matmul']}")
        for part in asked.parts or PARTS:
            results[part] = PARTS[part](setting)
            missed += not results[part].get("met", True)
    text = json.dumps(results, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return missed


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
    parser.add_argument("--panels", type=int, default=24, help="of the story")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.parts) - set(PARTS)):
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    return asked


def _setting(asked: argparse.Namespace, folder: Path) -> Setting:
    environment = current(asked.device, None)
    parts = _parts(asked.model, folder, torch.device(environment.device))
    size = read_size(asked.size, sample_size=0)
    return Setting(parts, environment, size, asked.steps, asked.rounds, asked.panels, folder)


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
    sys.exit(min(main(), 1))
