"""Whether the fused kernels work on a device: each against its reference in float32."""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from comicgen import beside
from comicgen.diffusion import fused_operations
from comicgen.diffusion.precision import exact_convolutions
from comicgen.diffusion.trial import why_not

_NEAR = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative distances that rounding leaves."""


@cache
def begin(device: torch.device, dtype: torch.dtype) -> Future[str]:
    """Have a thread find out why fused kernels cannot be used; empty where they can.

    On a new machine they are compiled, several at once, which takes seconds.
    """
    types = {dtype, torch.float16}  # a VAE is in float16 whatever the rest is in

    def wrong() -> list[str]:
        with exact_convolutions():
            return [name for own in types for name in wrong_operations(device, own)]

    return beside.begin(lambda: why_not(device, wrong, "would be wrong"))


def wrong_operations(device: torch.device, dtype: torch.dtype) -> list[str]:
    """The operations whose results are not near those of their references.

    Kernels are compiled by as many threads as there are processors; torch computes in this one, as
    each of its own would bring threads with it.

    Raises:
        Exception: whatever Triton, or a compiler that it needs, cannot do.
    """
    examples = [
        (name, arguments, [_there(each, device, dtype) for each in arguments])
        for name, arguments in _examples()
    ]
    threads = min(len(examples), os.cpu_count() or 1)

    @torch.inference_mode()
    def some(first: int) -> list[Tensor]:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return [
                getattr(fused_operations, name)(*there)
                for name, _, there in examples[first::threads]
            ]

    found: list[Any] = [None] * len(examples)
    for first, each in enumerate([beside.begin(partial(some, i)) for i in range(threads)]):
        found[first::threads] = each.result()
    return [
        name
        for (name, arguments, _), result in zip(examples, found, strict=True)
        if not _is_near(result, getattr(fused_operations, name)(*arguments), dtype)
    ]


@torch.inference_mode()
def _is_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return distance(found, expected) < _NEAR[dtype]


def distance(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to what is expected, in float64 on the CPU."""
    wide = expected.double().cpu()
    return float((found.double().cpu() - wide).norm() / wide.norm())


def _examples() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Arguments that need more than one tile in every direction, and end within one.

    All that SDXL's networks compile is compiled for these. What stays in float32 is in float64.
    """
    chance = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        wide = torch.float32  # not torch's default, which libraries change while they read a model
        return torch.randn(shape, generator=chance, dtype=wide) + 0.5

    picture = numbers(2, 96, 40, 14)
    channels = [numbers(96) for _ in range(3)]
    yield "group_norm", (picture, 32, *channels[:2], 1e-5, True, numbers(2, 96), (1.0, 0.5))
    yield "group_norm", (picture, 32, *channels[:2], 1e-5, False, channels[2])
    large, small = numbers(1, 64, 210, 200), 2.0**-6  # more tiles than chunks, more chunks than 32
    norm = (numbers(64), numbers(64), 1e-3, True, numbers(1, 64), (small, small))
    yield "group_norm", (small * 0.1 * large, 32, *norm)
    for wide in (96, 2560):
        yield "group_norm", (numbers(1, wide, 5, 14), 32, numbers(wide), numbers(wide), 1e-5, True)
    yield "add", (picture, channels[0], numbers(2, 96, 40, 14), channels[1], 0.5)
    yield "add", (picture, channels[0], numbers(2, 96, 40, 14))
    yield "add", (picture, channels[0])
    yield "add", (numbers(2, 3, 40, 14), numbers(3))
    for width in (640, 1280):
        tokens, (before, *affine) = numbers(2, 7, width), (numbers(width) for _ in range(3))
        yield "layer_norm", (tokens, before.double(), *affine, 1e-5)
        yield "layer_norm", (0.002 * tokens, 0.002 * before.double(), *affine, 1e-5)
    yield "geglu", (3 * numbers(2, 7, 1280),)
    yield "weigh", (picture, numbers(2, 1, 1, 1).double())
    yield "upsample", (picture, numbers(80, 96, 3, 3), numbers(80), 0.5)


def _there(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    there = value.to(device, torch.float32 if value.dtype == torch.float64 else dtype)
    return there.to(memory_format=torch.channels_last) if there.ndim == 4 else there
