"""What lies between the products of a fused network: plain torch, and on a GPU one kernel each.

Pictures lie in `channels_last` memory: a pixel's channels side by side.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _by_kernel(reference: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let the kernel of the same name compute it on a GPU in 16 bits, rounding once.

    What it is decorated with rounds after each operation, and is `__wrapped__` for the tests.
    """

    @wraps(reference)
    def operation(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        x = args[0]
        assert isinstance(x, Tensor)
        if not x.is_cuda or x.dtype == torch.float32:
            return reference(*args, **kwargs)
        from comicgen.diffusion import fused_kernels

        result: _Result = getattr(fused_kernels, reference.__name__)(*args, **kwargs)
        return result

    return operation


@_by_kernel
def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool = False,
    before: Tensor | None = None,
    gain: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Group normalisation (arXiv 1803.08494) of x + before, then SiLU, if wanted.

    `x` is (R, C, H, W), `before` (R, C) or (C,); the result is like x. By `gain` x and the result
    are larger than what they stand for; `before` is not.
    """
    if before is not None:
        x = x + gain[0] * (before if before.ndim == 2 else before[None])[:, :, None, None]
    normed = F.group_norm(x, groups, weight, bias, eps * gain[0] ** 2)
    return (F.silu(normed) if silu else normed) * gain[1]


@_by_kernel
def add(
    x: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    more: Tensor | None = None,
    gain: float = 1.0,
) -> Tensor:
    """x + gain * bias + residual + gain * more, perhaps in the memory of x.

    `x` and `residual` are (R, C, H, W), `bias` and `more` (C,).
    """
    x = x + gain * bias[:, None, None]
    if residual is not None:
        x = x + residual
    return x if more is None else x + gain * more[:, None, None]


@_by_kernel
def layer_norm(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer normalisation (arXiv 1607.06450) of x + before.

    `x` is (R, N, D), contiguous; `before` (D,), float32 where x is on a GPU.
    """
    return F.layer_norm(x + before.to(x.dtype), x.shape[-1:], weight, bias, eps)


@_by_kernel
def geglu(x: Tensor) -> Tensor:
    """h * gelu(g) (arXiv 2002.05202), where h and g are the halves of (R, N, 2 I)."""
    hidden, gate = x.chunk(2, dim=-1)
    return hidden * F.gelu(gate)


@_by_kernel
def upsample(x: Tensor, weight: Tensor, bias: Tensor, gain: float = 1.0) -> Tensor:
    """Every pixel of (R, C, H, W) four times, then a 3x3 convolution, then gain * bias.

    `weight` is (D, C, 3, 3), `bias` (D,); the result is (R, D, 2 H, 2 W). The kernel adds up the
    weights that meet the same pixel and convolves before anything is repeated, which is the same
    with 4 products instead of 9.
    """
    convolved = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), weight, padding=1)
    return convolved + gain * bias[:, None, None]


@_by_kernel
def weigh(x: Tensor, weight: Tensor) -> Tensor:
    """Each row of (R, C, H, W) times its float32 weight (R, 1, 1, 1), perhaps in its memory."""
    return (x * weight).to(x.dtype)
