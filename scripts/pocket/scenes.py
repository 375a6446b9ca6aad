"""Training scenes, drawn by the pocket model itself from random captions."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from captions import caption
from diffusers import StableDiffusionXLPipeline
from torch import Tensor

MODEL = Path(__file__).parents[2] / "comicgen" / "pocket" / "model"
SIZES = ((256, 256), (320, 192), (384, 256), (256, 384), (192, 320))
"""Width and height of the pictures that the model was trained on."""
STEPS, GUIDANCE = 20, 3.0


@dataclass(frozen=True)
class Scenes:
    """n captioned pictures of one size, held on the drawing device.

    prompts: (n, 77, 224) and pooled: (n, 128), the text as the UNet sees it; no_prompt, no_pooled:
    the same for the empty prompt, n = 1; latents: (n, 4, h/8, w/8) as the UNet sees them;
    pictures: (n, 3, h, w), uint8.
    """

    captions: list[str]
    prompts: Tensor
    pooled: Tensor
    no_prompt: Tensor
    no_pooled: Tensor
    latents: Tensor
    pictures: Tensor

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def time_ids(self) -> Tensor:
        """SDXL's six size numbers for an uncropped picture, (1, 6)."""
        height, width = self.pictures.shape[-2:]
        return torch.tensor([[height, width, 0, 0, height, width]], device=self.latents.device)


def load_pipeline(device: torch.device) -> StableDiffusionXLPipeline:
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    pipeline = StableDiffusionXLPipeline.from_pretrained(
        MODEL, dtype=dtype, add_watermarker=False, local_files_only=True
    ).to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def random_captions(count: int, size: tuple[int, int], seed: int) -> list[str]:
    rng = Random(f"{seed} {size}")
    return [caption(rng, tall=size[1] > size[0]) for _ in range(count)]


def pixels(vae: torch.nn.Module, latents: Tensor) -> Tensor:
    """Decode latents (n, 4, h, w), as the UNet sees them, to (n, 3, 8h, 8w), uint8."""
    scaled = (latents / vae.config.scaling_factor).to(vae.dtype)
    decoded = [vae.decode(part).sample for part in scaled.split(64)]
    return ((torch.cat(decoded).float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


@torch.no_grad()
def draw_batch(
    pipeline: StableDiffusionXLPipeline, texts: list[str], size: tuple[int, int], seed: int
) -> Scenes:
    width, height = size
    prompts, no_prompts, pooled, no_pooled = pipeline.encode_prompt(texts)
    latents = pipeline(
        prompt_embeds=prompts,
        negative_prompt_embeds=no_prompts,
        pooled_prompt_embeds=pooled,
        negative_pooled_prompt_embeds=no_pooled,
        width=width,
        height=height,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator().manual_seed(seed),
        output_type="latent",
    ).images
    pictures = pixels(pipeline.vae, latents)
    return Scenes(texts, prompts, pooled, no_prompts[:1], no_pooled[:1], latents, pictures)


def draw(
    pipeline: StableDiffusionXLPipeline, count: int, size: tuple[int, int], batch: int, seed: int
) -> Scenes:
    """`count` scenes of one size; the same seed gives the same captions and the same noise."""
    texts = random_captions(count, size, seed)
    starts = range(0, count, batch)
    parts = [draw_batch(pipeline, texts[n : n + batch], size, seed + n) for n in starts]

    def joined(field: str) -> Tensor:
        return torch.cat([getattr(part, field) for part in parts])

    return Scenes(
        texts,
        joined("prompts"),
        joined("pooled"),
        parts[0].no_prompt,
        parts[0].no_pooled,
        joined("latents"),
        joined("pictures"),
    )
