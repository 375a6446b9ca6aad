"""Whether the fused kernels work on a device: each against its reference in float32."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion import fused_operations
from comicgen.diffusion.trial import why_not
from comicgen.diffusion.workplace import exact_convolutions

_NEAR = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative distances that rounding leaves."""


@cache
def why_not_fused(device: torch.device, dtype: torch.dtype) -> str:
    """Why fused kernels cannot be used; empty where they can. Compiles them on a new machine."""
    types = {dtype, torch.float16}  # a VAE is in float16 whatever the rest is in

    def wrong() -> list[str]:
        with torch.inference_mode(), exact_convolutions():
            return [name for own in types for name in wrong_operations(device, own)]

    return why_not(device, wrong, "would be wrong")


def wrong_operations(device: torch.device, dtype: torch.dtype) -> Iterator[str]:
    """The operations whose results are not near those of their references.

    Raises:
        Exception: whatever Triton, or a compiler that it needs, cannot do.
    """
    for name, arguments in _examples():
        operation: Callable[..., Any] = getattr(fused_operations, name)
        expected = operation(*arguments)
        found = operation(*(_there(each, device, dtype) for each in arguments))
        results = zip(_tensors(found), _tensors(expected), strict=True)
        if not all(distance(one, other) < _NEAR[dtype] for one, other in results):
            yield name


def distance(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to what is expected, in float64 on the CPU."""
    wide = expected.double().cpu()
    return float((found.double().cpu() - wide).norm() / wide.norm())


def _examples() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Arguments that need more than one tile in every direction, and end within one."""
    chance = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance) + 0.5

    picture = numbers(2, 96, 40, 14)
    channels = [numbers(96) for _ in range(3)]
    yield "group_norm", (picture, 32, *channels[:2], 1e-5, True, numbers(2, 96), (1.0, 0.5))
    yield "group_norm", (picture, 32, *channels[:2], 1e-5, False, channels[2])
    large, small = numbers(1, 64, 210, 200), 2.0**-6  # more tiles than chunks, more chunks than 32
    norm = (numbers(64), numbers(64), 1e-3, True, numbers(1, 64), (small, small))
    yield "group_norm", (small * 0.1 * large, 32, *norm)
    yield "add", (picture, channels[0], numbers(2, 96, 40, 14), channels[1], 0.5)
    yield "add", (picture, channels[0])
    for width in (640, 1280):
        tokens, affine = numbers(2, 7, width), (numbers(width), numbers(width), 1e-5)
        yield "add_layer_norm", (tokens, numbers(2, 7, width), *affine)
        yield "add_layer_norm", (0.002 * tokens, None, *affine)
    yield "geglu", (3 * numbers(2, 7, 1280),)
    yield "weigh", (picture, numbers(2, 1, 1, 1))
    yield "upsample", (picture, numbers(48, 96, 3, 3), numbers(48), 0.5)


def _there(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    there = value.to(device, dtype)
    return there.to(memory_format=torch.channels_last) if there.ndim == 4 else there


def _tensors(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
