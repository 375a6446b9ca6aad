"""From latents to a picture, one at a time, in a wider type where 16 bits overflow."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from comicgen.errors import CandidateError


@dataclass(frozen=True, slots=True)
class Decoded:
    """A picture, and what had to be done for it."""

    image: Image.Image
    notes: tuple[str, ...] = ()


class Decoder:
    """A VAE's decoder."""

    def __init__(self, vae: Any) -> None:
        self.vae = vae

    def decode(self, latents: Tensor) -> Decoded:
        """The picture of one candidate's latents, (1, C, h, w) float32.

        Raises:
            CandidateError: the latents, or the pixels even in float32, are not finite.
        """
        if not _is_finite(latents):
            raise CandidateError(
                "nan: the latents are not finite after the last step; "
                "lower the guidance or a LoRA's weight, or draw with another seed"
            )
        pixels = _decode(self.vae, latents)
        if _is_finite(pixels):
            return Decoded(_to_image(pixels))
        if self.vae.dtype != torch.float32:
            pixels = _decode(self._wide, latents)
        if not _is_finite(pixels):
            raise CandidateError(
                "nan: the VAE gives pixels that are not finite, even in float32; use another model"
            )
        narrow = str(self.vae.dtype).removeprefix("torch.")
        return Decoded(
            _to_image(pixels), (f"the VAE overflowed in {narrow}; decoded again in float32",)
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


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _to_image(pixels: Tensor) -> Image.Image:
    levels = ((pixels[0].float() * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).contiguous().cpu().numpy())
