"""Draws with a finished pocket model: what its pipeline draws, but many pictures at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from channels_last import exchange
from diffusers import AutoencoderKL, ControlNetModel, StableDiffusionXLPipeline
from networks import size_numbers
from pixels import as_pixels, as_values
from torch import Tensor
from unet_stage import text_states, token_ids

STEPS, GUIDANCE = 20, 2.0
BATCH = {"cuda": 250, "cpu": 8}
"""Pictures that are drawn at once."""
DECODED = 50
"""Pictures that go through the VAE at once."""


def load_pipeline(folder: Path, device: torch.device) -> StableDiffusionXLPipeline:
    """From a diffusers folder, in float16 on a GPU and in float32 on a CPU."""
    pipeline = StableDiffusionXLPipeline.from_pretrained(
        folder, dtype=_precision(device), add_watermarker=False, local_files_only=True
    ).to(device)
    for network in (pipeline.unet, pipeline.vae):
        _lay_out(network)
    return pipeline


def load_controlnet(folder: Path, device: torch.device) -> ControlNetModel:
    """In the precision of a pipeline on the same device."""
    controlnet = ControlNetModel.from_pretrained(
        folder, dtype=_precision(device), local_files_only=True
    ).to(device)
    _lay_out(controlnet)
    return controlnet


def _precision(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


def _lay_out(network: torch.nn.Module) -> None:
    """Let a network on its device work in the memory layout that is fast."""
    network.to(memory_format=torch.channels_last)
    if next(network.parameters()).is_cuda:
        exchange(network)


@dataclass(frozen=True)
class Steering:
    """A ControlNet, its maps (n, 1, h, w), 0 to 1, and how much it counts."""

    controlnet: ControlNetModel
    maps: Tensor
    weight: float


@torch.inference_mode()
def draw(
    pipeline: StableDiffusionXLPipeline,
    prompts: Sequence[str],
    negatives: Sequence[str],
    size: tuple[int, int],
    seeds: Sequence[int],
    steps: int = STEPS,
    guidance: float = GUIDANCE,
    steering: Steering | None = None,
) -> Tensor:
    """Pictures (n, 3, h, w), uint8, on the CPU: the same that the pipeline draws, in batches.

    size: width and height; seeds: of each picture's noise.
    """
    most = BATCH[pipeline.unet.device.type]
    parts = []
    for start in range(0, len(prompts), most):
        part = slice(start, start + most)
        steered = steering and Steering(steering.controlnet, steering.maps[part], steering.weight)
        texts = [*negatives[part], *prompts[part]]
        latents = _drawn_latents(pipeline, texts, size, seeds[part], steps, guidance, steered)
        parts.append(decoded(pipeline.vae, latents / pipeline.vae.config.scaling_factor).cpu())
    return torch.cat(parts)


def _drawn_latents(
    pipeline: StableDiffusionXLPipeline,
    texts: list[str],
    size: tuple[int, int],
    seeds: Sequence[int],
    steps: int,
    guidance: float,
    steering: Steering | None,
) -> Tensor:
    """Latents (n, 4, h / 8, w / 8), scaled. texts: the negative prompts, then the prompts.

    Nothing in the steps waits for the GPU.
    """
    unet, scheduler, (w, h) = pipeline.unet, pipeline.scheduler, size
    states, pooled = text_states(
        pipeline, [ids.to(unet.device) for ids in token_ids(pipeline, texts)]
    )
    numbers = torch.tensor([size_numbers(size)]).to(states).expand(len(texts), -1)
    known = {
        "encoder_hidden_states": states,
        "added_cond_kwargs": {"text_embeds": pooled, "time_ids": numbers},
    }
    if steering:
        maps = _laid(steering.maps.to(states).expand(-1, 3, -1, -1).repeat(2, 1, 1, 1))
    noise = [
        torch.randn((4, h // 8, w // 8), generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ]
    scheduler.set_timesteps(steps, device=unet.device)
    scheduler.set_begin_index(0)  # else it looks for its first step on the GPU
    latents = _laid(torch.stack(noise).to(states) * scheduler.init_noise_sigma)
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(torch.cat([latents] * 2), timestep)
        extra = {}
        if steering:
            down, middle = steering.controlnet(
                scaled,
                timestep,
                controlnet_cond=maps,
                conditioning_scale=steering.weight,
                return_dict=False,
                **known,
            )
            extra = {
                "down_block_additional_residuals": down,
                "mid_block_additional_residual": middle,
            }
        guess = unet(scaled, timestep, return_dict=False, **known, **extra)[0]
        without, with_prompt = guess.chunk(2)
        guess = without + guidance * (with_prompt - without)
        latents = scheduler.step(guess, timestep, latents, return_dict=False)[0]
    return latents


def _laid(pictures: Tensor) -> Tensor:
    """The same (n, c, h, w), in the memory layout that is fast."""
    return pictures.contiguous(memory_format=torch.channels_last)


def decoded(vae: AutoencoderKL, latents: Tensor) -> Tensor:
    """Pictures (n, 3, 8 h, 8 w), uint8, of latents (n, 4, h, w), unscaled."""
    parts = [vae.decode(part, return_dict=False)[0] for part in latents.split(DECODED)]
    return as_pixels(torch.cat(parts))


@torch.inference_mode()
def through_vae(vae: AutoencoderKL, pictures: Tensor) -> tuple[Tensor, int]:
    """The pictures (n, 3, h, w), uint8, encoded and decoded again, on the CPU; and how many values
    were not finite.
    """
    parts, broken = [], torch.zeros((), dtype=torch.int64, device=vae.device)
    for part in pictures.split(DECODED):
        wanted = _laid(as_values(part.to(vae.device)).to(vae.dtype))
        latents = vae.encode(wanted).latent_dist.mode()
        values = vae.decode(latents, return_dict=False)[0]
        broken += (~values.isfinite()).sum()
        parts.append(as_pixels(values))
    return torch.cat(parts).cpu(), int(broken)
