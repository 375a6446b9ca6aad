"""Figures of pictures (n, 3, h, w), uint8, 0 to 255: one of each, (n,), float32."""

from collections.abc import Callable

import torch
from lines import crests, dilated, steepness
from noir import luma
from torch import Tensor

AT_ONCE = 50
"""Pictures that are on the device at once."""


def each_of(figure: Callable[..., Tensor], device: torch.device, *pictures: Tensor) -> Tensor:
    """figure(*pictures), on the device in batches; returned to the CPU."""
    batches = zip(*(each.split(AT_ONCE) for each in pictures), strict=True)
    return torch.cat([figure(*(part.to(device) for part in batch)).cpu() for batch in batches])


def line_agreement(drawn: Tensor, wanted: Tensor) -> Tensor:
    """F1 of the pictures' lines; two pixels apart still counts as met."""

    def met(lines: Tensor, others: Tensor) -> Tensor:
        return (lines * dilated(others, 5)).sum((1, 2, 3)) / lines.sum((1, 2, 3)).clamp(min=1)

    ours, theirs = (crests(steepness(pictures)) for pictures in (drawn, wanted))
    precision, recall = met(ours, theirs), met(theirs, ours)
    return 2 * precision * recall / (precision + recall).clamp(min=1e-6)


def chroma(pictures: Tensor) -> Tensor:
    """Mean distance of a pixel's strongest channel from its weakest, 0 (grey) to 255."""
    return (pictures.amax(1).float() - pictures.amin(1).float()).mean((1, 2))


def saturation(pictures: Tensor) -> Tensor:
    """Mean saturation of a pixel in HSV, 0 to 1."""
    most, least = pictures.amax(1).float(), pictures.amin(1).float()
    return ((most - least) / most.clamp(min=1)).mean((1, 2))


def sharpness(pictures: Tensor) -> Tensor:
    """Variance of the Laplacian of the luma (0 to 255)."""
    grey = luma(pictures.float())[:, 0]
    around = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    return (around - 4 * grey[:, 1:-1, 1:-1]).flatten(1).var(1)


def squared_error(copies: Tensor, pictures: Tensor) -> Tensor:
    """Mean squared difference of a copy from its picture, on a scale of 0 to 255."""
    return (copies.float() - pictures).square().mean((1, 2, 3))


def psnr(squared: Tensor) -> Tensor:
    """Decibels of mean squared errors on a scale of 0 to 255."""
    return 10 * torch.log10(255**2 / squared.clamp(min=1e-3))


def more(value: float, before: float) -> float:
    """The rise in percent."""
    return 100 * (value / before - 1)


def less(value: float, before: float) -> float:
    """The fall in percent."""
    return 100 * (1 - value / before)
