"""The look that the `noir` LoRA learns: greys of strong contrast, black ink, bright red kept."""

import torch
from lines import blurred, dilated, steepness
from pixels import as_pixels
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luma (ITU-R BT.601)."""


def luma(pictures: Tensor) -> Tensor:
    """(n, 3, h, w) to (n, 1, h, w), float32."""
    weights = torch.tensor(LUMA, device=pictures.device).view(1, 3, 1, 1)
    return (pictures * weights).sum(1, keepdim=True)


def smoothstep(value: Tensor, low: float, high: float) -> Tensor:
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def redness(colours: Tensor) -> Tensor:
    """1 where red (n, 3, h, w) far outshines green and blue, 0 where it does not."""
    red, others = colours[:, :1], colours[:, 1:].amax(1, keepdim=True)
    return smoothstep((red - others) / red.clamp(min=0.2), 0.66, 0.74)


def tones(grey: Tensor) -> Tensor:
    """Each picture (n, 1, h, w) half stretched to the full range, then bent into an S."""
    flat = grey.flatten(1)
    low, high = (torch.quantile(flat, q, dim=1).view(-1, 1, 1, 1) for q in (0.08, 0.92))
    stretched = 0.5 * grey + 0.5 * (grey - low) / (high - low).clamp(min=0.15)
    return smoothstep(stretched, 0.12, 0.8)


def noir(pictures: Tensor) -> Tensor:
    """pictures: (n, 3, h, w), 0 to 255. Returns the same shape, float32, -1 to 1."""
    colours = pictures.float() / 255
    grey = luma(colours)
    ink = blurred(dilated(smoothstep(steepness(pictures).float(), 40, 110)))
    shaded = 0.09 + 0.89 * tones(grey) * (1 - 0.85 * ink)
    red = redness(blurred(colours))
    accent = torch.cat([0.25 + 0.65 * shaded, 0.1 * shaded, 0.12 * shaded], 1)
    return torch.lerp(shaded.expand_as(colours), accent, red) * 2 - 1


def in_noir(pictures: Tensor) -> Tensor:
    """The look as pixels: (n, 3, h, w), uint8, of pictures of the same kind."""
    return as_pixels(noir(pictures))
