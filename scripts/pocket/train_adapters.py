"""Train the pocket model's two adapters, from nothing but the model itself.

    python scripts/pocket/train_adapters.py --out DIR [--quick]

Writes DIR/noir.safetensors, DIR/lineart/, two sheets of pictures, and DIR/report.json.
"""

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import diffusers
import peft
import torch
import transformers
from adapters import (
    add_lora,
    frozen_unet,
    lineart_loss,
    new_controlnet,
    noir_latents,
    noir_loss,
    save_controlnet,
    save_lora,
)
from evaluate import judge
from scenes import SIZES, Scenes, draw, load_pipeline
from training import Diffusion, Plan, say, train


@dataclass(frozen=True)
class Run:
    """pictures: drawn of each size, `drawn_at_once` together; tested: pictures in each figure."""

    pictures: int
    drawn_at_once: int
    noir: Plan
    lineart: Plan
    tested: int


FULL = Run(2048, 512, Plan(800, 128, 1.5e-3), Plan(1600, 128, 8e-4), tested=48)
QUICK = Run(2, 2, Plan(3, 2, 1e-3), Plan(3, 2, 6e-4), tested=1)


def train_noir(scenes: list[Scenes], run: Run, device: torch.device, file: Path) -> dict:
    pipeline, unet = load_pipeline(device), frozen_unet(device)
    diffusion = Diffusion.of(pipeline.scheduler.alphas_cumprod, device)
    parameters = add_lora(unet)
    losses = [
        noir_loss(unet, part, noir_latents(pipeline.vae, part), diffusion, run.noir.batch)
        for part in scenes
    ]
    figures = train("noir", parameters, losses, run.noir, device)
    save_lora(unet, file)
    return figures


def train_lineart(scenes: list[Scenes], run: Run, device: torch.device, folder: Path) -> dict:
    scheduler, unet = load_pipeline(device).scheduler, frozen_unet(device)
    diffusion = Diffusion.of(scheduler.alphas_cumprod, device)
    controlnet = new_controlnet(unet)
    losses = [lineart_loss(unet, controlnet, part, diffusion, run.lineart.batch) for part in scenes]
    figures = train("lineart", list(controlnet.parameters()), losses, run.lineart, device)
    save_controlnet(controlnet, folder)
    return figures


def environment(device: torch.device) -> dict[str, str]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "python": platform.python_version(),
        **{m.__name__: m.__version__ for m in (torch, diffusers, transformers, peft)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pocket model's two adapters.")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and sheets")
    parser.add_argument("--quick", action="store_true", help="a few steps: does it run at all?")
    arguments = parser.parse_args()
    run, out = QUICK if arguments.quick else FULL, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)

    start = time.monotonic()
    report: dict = {"environment": environment(device), "run": asdict(run)}
    pipeline = load_pipeline(device)
    scenes = [draw(pipeline, run.pictures, size, run.drawn_at_once, seed=1) for size in SIZES]
    report["drawing seconds"] = time.monotonic() - start
    say(f"drew {run.pictures * len(SIZES)} scenes", start)
    report["noir"] = train_noir(scenes, run, device, out / "noir.safetensors")
    report["lineart"] = train_lineart(scenes, run, device, out / "lineart")
    for name, figures in judge(out, run.tested, device).items():
        report[name] |= figures
    report["seconds"] = time.monotonic() - start
    text = json.dumps(report, indent=2)
    (out / "report.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
