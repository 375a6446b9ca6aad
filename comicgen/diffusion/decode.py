"""From latents to a picture, one at a time, in a wider type where 16 bits overflow."""

import copy
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from comicgen.diffusion.clock import Clock
from comicgen.errors import CandidateError


@dataclass(frozen=True, slots=True)
class Decoded:
    """A picture, what had to be done for it, and the seconds that this took."""

    image: Image.Image
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Decoding:
    """A picture on its way to the host.

    Its levels (H, W, 3) and whether latents and pixels are finite (2,) are on the CPU, and valid
    once the clock has stopped.
    """

    latents: Tensor
    levels: Tensor
    finite: Tensor
    clock: Clock

    def seconds(self) -> float:
        """What it took, once it is there."""
        return self.clock.seconds()


class Decoder:
    """A VAE's decoder."""

    def __init__(self, vae: Any) -> None:
        self.vae = vae

    def begin(self, latents: Tensor) -> Decoding:
        """Start on one candidate's latents, (1, C, h, w) float32; a GPU is not waited for."""
        clock = Clock(latents.device)
        clock.mark()
        pixels = _decode(self.vae, latents)
        levels = _to_host(_levels(pixels))
        finite = _to_host(torch.stack([_finite(latents), _finite(pixels)]))
        clock.mark()
        return Decoding(latents, levels, finite, clock)

    def finish(self, decoding: Decoding) -> Decoded:
        """The picture, once it is there.

        Raises:
            CandidateError: the latents, or the pixels even in float32, are not finite.
        """
        decoding.seconds()
        latents_finite, pixels_finite = decoding.finite.tolist()
        if not latents_finite:
            raise CandidateError(
                "nan: the latents are not finite after the last step; "
                "lower the guidance or a LoRA's weight, or draw with another seed"
            )
        if pixels_finite:
            return Decoded(_to_image(decoding.levels))
        return self._again(decoding.latents)

    def decode(self, latents: Tensor) -> Decoded:
        """Both at once."""
        return self.finish(self.begin(latents))

    def _again(self, latents: Tensor) -> Decoded:
        begun, wide = time.perf_counter(), None
        if self.vae.dtype != torch.float32:
            wide = _decode(self._wide, latents)
        if wide is None or not _finite(wide):
            raise CandidateError(
                "nan: the VAE gives pixels that are not finite, even in float32; use another model"
            )
        narrow = str(self.vae.dtype).removeprefix("torch.")
        return Decoded(
            _to_image(_levels(wide).cpu()),
            (f"the VAE overflowed in {narrow}; decoded again in float32",),
            time.perf_counter() - begun,
        )

    @cached_property
    def _wide(self) -> Any:
        # A copy: casting the VAE itself would move weights that captured graphs read.
        return copy.deepcopy(self.vae).float()


def _decode(vae: Any, latents: Tensor) -> Tensor:
    """Pixels (1, 3, H, W), about -1 to 1, in the VAE's dtype."""
    mean, std = vae.config.latents_mean, vae.config.latents_std
    if mean is not None and std is not None:
        scaled = latents * _channels(std, latents) / vae.config.scaling_factor
        scaled = scaled + _channels(mean, latents)
    else:
        scaled = latents / vae.config.scaling_factor
    pixels: Tensor = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
    return pixels


def _channels(values: Any, latents: Tensor) -> Tensor:
    return torch.tensor(values, dtype=latents.dtype, device=latents.device).view(1, -1, 1, 1)


def _finite(tensor: Tensor) -> Tensor:
    return torch.isfinite(tensor).all()


def _levels(pixels: Tensor) -> Tensor:
    """(H, W, 3), 0 to 255."""
    levels = ((pixels[0].float() * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return levels.permute(1, 2, 0).contiguous()


def _to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU; from a GPU it arrives when the stream is so far."""
    if not tensor.is_cuda:
        return tensor
    try:
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError:  # the host has no such memory to give
        return tensor.cpu()
    return there.copy_(tensor, non_blocking=True)


def _to_image(levels: Tensor) -> Image.Image:
    return Image.fromarray(levels.numpy())
