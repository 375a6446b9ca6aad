"""Trains the pocket model and what is worn over it, in stages.

    python scripts/pocket/train.py all --work DIR              # one GPU, 40 minutes
    python scripts/pocket/train.py unet --work DIR --seconds 480
    python scripts/pocket/train.py all --work TRY --quick      # a CPU, minutes: does it run?

The stages are `vae`, `unet`, `unet` again, `reader` and `adapters`, none longer than nine minutes.
What one needs of those before is in DIR, in float16, so that each can have a machine of its own.
Scenes are composed meanwhile, in DIR/pool, by a fixed number of processes.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from adapters import train_adapters
from networks import Parts, new_parts
from plainly import a_time, plainly, read_json
from pool import PEOPLE_EVERY, start_workers
from ranks import RANK, RANKS, join, leave, meet
from reader_stage import train_readers
from safetensors import SafetensorError
from training import hush, say
from unet_stage import RATE, RATE_AGAIN, train_unet
from vae_stage import train_vae

STAGES = {"vae": 450, "unet": 450, "reader": 240, "adapters": 240}
"""How many seconds each stage trains unless told otherwise."""
ALL = ("vae", "unet", "unet", "reader", "adapters")
QUICK_STEPS = 2


def run(stage: str, work: Path, options: argparse.Namespace) -> None:
    """One stage; leaves its networks in `work`, and its figures, unless quick, in
    work/training.json.
    """
    seconds = options.seconds or STAGES[stage]
    most = QUICK_STEPS if options.quick else None
    folder, pool, record = work / "model", work / "pool", work / "training.json"
    if stage in ("unet", "adapters") and not folder.exists():
        raise SystemExit(f"{folder} is not there: train the stage `vae` first.")
    stages = recorded(record)
    rate = RATE_AGAIN if unet_goes_on(stages) else RATE
    parts = Parts.load(folder) if folder.exists() else new_parts()
    train: Callable[[], dict] = {
        "vae": lambda: train_vae(parts, pool, seconds, most),
        "unet": lambda: train_unet(parts, pool, seconds, most, rate),
        "reader": lambda: train_readers(pool, work / "readers", seconds, most),
        "adapters": lambda: train_adapters(parts, pool, work, seconds, most),
    }[stage]
    torch.manual_seed(options.first + 1 + RANK)
    figures = train() if RANK == 0 or stage != "reader" else {}
    if RANK == 0 and stage in ("vae", "unet"):
        parts.save(folder)
    if RANK == 0 and not options.quick:
        figures = {"stage": stage, "processes": RANKS, "on": machine(), **figures}
        written = record.with_suffix(".new")
        written.write_text(json.dumps([*stages, figures], indent=2) + "\n")
        written.replace(record)
    meet()


def recorded(file: Path) -> list[dict]:
    """What earlier stages left in the file, if there is one."""
    if not file.exists():
        return []
    try:
        return [{"stage": each["stage"], **each} for each in read_json(file)]
    except (KeyError, TypeError) as error:
        raise SystemExit(f"{file} holds no record of stages ({error}).") from error


def unet_goes_on(stages: list[dict]) -> bool:
    """Whether the UNet was trained since the VAE was, whose latents it learns."""
    kinds = [each["stage"] for each in stages if each["stage"] in ("vae", "unet")]
    return kinds[-1:] == ["unet"]


def machine() -> str:
    """For example `NVIDIA H200, torch 2.11.0`."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{device}, torch {torch.__version__.partition('+')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pocket model, in stages.")
    parser.add_argument("stage", choices=["all", *STAGES])
    parser.add_argument("--work", type=Path, required=True, help="folder of weights and scenes")
    parser.add_argument("--seconds", type=a_time, help="of training, without what surrounds it")
    parser.add_argument("--workers", type=int, default=14, help="processes that compose scenes")
    parser.add_argument("--scenes", type=int, default=250_000, help="composed at most")
    parser.add_argument("--first", type=int, default=0, help="seed of the first scene")
    parser.add_argument("--quick", action="store_true", help="a few steps: does it run at all?")
    options = parser.parse_args()
    hush()
    if options.quick:
        if (options.work / "training.json").exists():
            parser.error(f"--quick would spoil what was trained in {options.work}")
        options.workers, options.scenes = min(2, options.workers), 12 * 64
    every = 2 if options.stage == "adapters" or options.quick else PEOPLE_EVERY
    join()
    if RANK == 0:
        start_workers(
            options.work / "pool",
            options.workers,
            options.scenes,
            options.first,
            every,
            outlive=False,
        )
    for stage in ALL if options.stage == "all" else [options.stage]:
        say(f"stage {stage}")
        run(stage, options.work, options)
    leave()


if __name__ == "__main__":
    with plainly(SafetensorError):
        main()
