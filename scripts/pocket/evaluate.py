"""What the adapters do to pictures: figures, and sheets to look at.

    python scripts/pocket/evaluate.py DIR [--tested N]

reads DIR/noir.safetensors and DIR/lineart/, prints figures, and writes DIR/noir.png and
DIR/lineart.png.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from captions import caption, place_of
from diffusers import ControlNetModel, DiffusionPipeline, StableDiffusionXLControlNetPipeline
from lines import crests, dilated, line_art, steepness
from noir import noir
from PIL import Image
from scenes import GUIDANCE, STEPS, draw, load_pipeline, random_captions
from torch import Tensor

SEED = 900_000
SHEET_COLUMNS = 10


def agreement(drawn: Tensor, wanted: Tensor) -> float:
    """Mean F1 of two sets of thin lines (n, 1, h, w); two pixels apart still counts as met."""

    def met(lines: Tensor, others: Tensor) -> Tensor:
        return (lines * dilated(others, 5)).sum((1, 2, 3)) / lines.sum((1, 2, 3)).clamp(min=1)

    precision, recall = met(drawn, wanted), met(wanted, drawn)
    return (2 * precision * recall / (precision + recall).clamp(min=1e-6)).mean().item()


def lines_of(pictures: Tensor) -> Tensor:
    return crests(steepness(pictures))


def chroma(pictures: Tensor) -> float:
    """Mean distance of a pixel's strongest channel from its weakest, 0 (grey) to 255."""
    pictures = pictures.float()
    return (pictures.amax(1) - pictures.amin(1)).mean().item()


def distance(pictures: Tensor, others: Tensor) -> float:
    """Mean difference of a pixel's channels, 0 to 255."""
    return (pictures.float() - others.float()).abs().mean().item()


def sheet(rows: list[Tensor], file: Path) -> None:
    """One row of pictures (n, 3, h, w), uint8, for each tensor."""
    strips = [torch.cat(list(row[:SHEET_COLUMNS].cpu()), 2) for row in rows]
    Image.fromarray(torch.cat(strips, 1).permute(1, 2, 0).numpy()).save(file)


@torch.no_grad()
def drawn(
    pipeline: DiffusionPipeline, texts: list[str], size: tuple[int, int], **more: Any
) -> Tensor:
    """Pictures (n, 3, h, w), uint8, of the texts; the same noise in every call."""
    images = pipeline(
        texts,
        width=size[0],
        height=size[1],
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE + 1,
        generator=torch.Generator().manual_seed(SEED),
        output_type="pt",
        **more,
    ).images
    return (images.float() * 255).round().to(torch.uint8)


def judge_noir(file: Path, tested: int, device: torch.device, out: Path) -> dict[str, float]:
    size = (256, 256)
    pipeline, texts = load_pipeline(device), random_captions(tested, size, SEED)
    plain = drawn(pipeline, texts, size)
    pipeline.load_lora_weights(file, adapter_name="noir")
    pipeline.set_adapters("noir", 0.5)
    half = drawn(pipeline, texts, size)
    pipeline.set_adapters("noir", 1.0)
    full = drawn(pipeline, texts, size)
    by_rule = ((noir(plain) + 1) * 127.5).to(torch.uint8)
    sheet([plain, half, full, by_rule], out / "noir.png")
    return {
        "pixel change at weight 0.5": distance(half, plain),
        "pixel change at weight 1": distance(full, plain),
        "chroma plain": chroma(plain),
        "chroma at weight 0.5": chroma(half),
        "chroma at weight 1": chroma(full),
        "chroma of the tone rule applied to plain": chroma(by_rule),
        "lines shared with the plain picture (F1)": agreement(lines_of(full), lines_of(plain)),
    }


def judge_lineart(folder: Path, tested: int, device: torch.device, out: Path) -> dict[str, float]:
    size = (320, 192)
    pipeline = load_pipeline(device)
    scenes = draw(pipeline, tested, size, tested, SEED + 1)
    rng = Random(SEED)
    others = [caption(rng, place=place_of(text)) for text in scenes.captions]
    controlnet = ControlNetModel.from_pretrained(folder, dtype=pipeline.dtype).to(device)
    guided = StableDiffusionXLControlNetPipeline(
        **pipeline.components, controlnet=controlnet, add_watermarker=False
    )
    guided.set_progress_bar_config(disable=True)
    maps = line_art(scenes.pictures).expand(-1, 3, -1, -1)
    wanted = lines_of(scenes.pictures)

    def steered(texts: list[str], weight: float) -> Tensor:
        return drawn(guided, texts, size, image=maps, controlnet_conditioning_scale=weight)

    same = {weight: steered(scenes.captions, weight) for weight in (0.0, 0.5, 1.0)}
    other = {weight: steered(others, weight) for weight in (0.0, 0.5, 1.0)}
    silent = {1.0: steered([""] * tested, 1.0)}
    shown = (maps * 255).to(torch.uint8)
    rows = [scenes.pictures, shown, *same.values(), *other.values(), *silent.values()]
    sheet(rows, out / "lineart.png")
    figures = {
        "pixel change, weight 1 against 0": distance(same[1.0], same[0.0]),
        "F1 after one pass through the VAE": agreement(
            lines_of(through_vae(pipeline.vae, scenes.pictures)), wanted
        ),
    }
    for name, row in (("same prompt", same), ("other prompt", other), ("no prompt", silent)):
        for weight, pictures in row.items():
            figures[f"F1 at weight {weight}, {name}"] = agreement(lines_of(pictures), wanted)
    return figures


@torch.no_grad()
def through_vae(vae: torch.nn.Module, pictures: Tensor) -> Tensor:
    """Encoded and decoded again: the closest that the model's latents can come."""
    latents = vae.encode((pictures / 127.5 - 1).to(vae.dtype)).latent_dist.mode()
    return ((vae.decode(latents).sample.float().clamp(-1, 1) + 1) * 127.5).to(torch.uint8)


def judge(out: Path, tested: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Figures of both adapters in `out`, each the mean of `tested` pictures."""
    return {
        "noir": judge_noir(out / "noir.safetensors", tested, device, out),
        "lineart": judge_lineart(out / "lineart", tested, device, out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the pocket model's two adapters.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tested", type=int, default=16, help="pictures in each figure")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(json.dumps(judge(arguments.folder, arguments.tested, device), indent=2))


if __name__ == "__main__":
    main()
