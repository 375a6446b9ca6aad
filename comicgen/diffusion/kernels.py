"""Triton kernels that give the bits of torch's own on a GPU, in less time.

They run on the current device and stream. torch's kernels are the reference, for whose order of
sums these lines hold; `kernel_modules.differing` compares.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

CHAINS = 512
"""torch sums a group of at least so many numbers in so many chains, and smaller ones in fewer."""

_BLOCK = 4096  # numbers of one plane that a program takes

# Where torch's compiler joins a product and a sum, so do these kernels, by name; nowhere else.
_EXACT: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool = False
) -> Tensor:
    """Group normalisation (arXiv 1803.08494) of (B, C, ...), in groups of `CHAINS` or more.

    `weight` and `bias` are (C,) in the dtype of `x`. torch's kernel waits for every number of a
    chain; here the next eight are on their way. `silu` is for 16 bits, in which every number
    was compared.
    """
    wide = _keeps_wide_statistics(x.device, x.dtype)
    return _group_norm(x, groups, weight, bias, eps, silu, wide)


@cache
def _keeps_wide_statistics(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch normalises with float32 statistics, as from 2.14 on, or rounds them before."""
    x = torch.linspace(-1.1, 0.7, 8 * CHAINS).view(1, 8, -1, 1).to(device, dtype)
    weight, bias = x[0, :, 0, 0].clone(), x[0, :, 1, 0].clone()
    theirs = F.group_norm(x, 2, weight, bias, 1e-6)
    return torch.equal(_group_norm(x, 2, weight, bias, 1e-6, False, True), theirs)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, wide: bool
) -> Tensor:
    x = x.contiguous()
    batch, channels = x.shape[:2]
    area, per_group = x.shape[2:].numel(), channels // groups
    mean = torch.empty(batch * groups, dtype=torch.float32 if wide else x.dtype, device=x.device)
    rstd, normed = torch.empty_like(mean), torch.empty_like(x)
    _moments[(batch * groups,)](
        x, mean, rstd, per_group * area, _rounded(eps, x.dtype), CHAINS, **_EXACT
    )
    grid = batch * channels, triton.cdiv(area, _BLOCK)
    _normalise[grid](
        x, mean, rstd, weight, bias, normed, channels, per_group, area, silu, _BLOCK, **_EXACT
    )
    return normed


@cache
def _rounded(eps: float, dtype: torch.dtype) -> float:
    """torch's kernel takes eps in the dtype of what it normalises."""
    return torch.tensor(eps, dtype=dtype).item()


def add(
    x: Tensor, bias: Tensor, per_plane: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """The sum of (B, C, H, W), `bias` (C,), `per_plane` (B, C) and a residual like x.

    Each sum is rounded, as if there was a kernel for each; x may be changed. torch's kernels take
    one number at a time where something is broadcast. Where not all lies plane by plane, torch
    adds, and chooses the layout.
    """
    if not x.is_contiguous() or not (residual is None or residual.is_contiguous()):
        x = x + bias[:, None, None]
        x = x if per_plane is None else x + per_plane[:, :, None, None]
        return x if residual is None else residual + x
    batch, channels, height, width = x.shape
    per_plane = None if per_plane is None else per_plane.contiguous()
    grid = batch * channels, triton.cdiv(height * width, _BLOCK)
    _add[grid](x, bias, per_plane, residual, channels, height * width, _BLOCK, **_EXACT)
    return x


@triton.jit
def _moments(x, mean_of, rstd_of, length, eps, CHAINS: tl.constexpr):
    """Mean and 1 / deviation of one group of `length` numbers."""
    group = tl.program_id(0)
    chain = tl.arange(0, CHAINS)
    start = x + group.to(tl.int64) * length + chain
    steps = length // CHAINS
    eights = steps // 8
    mean = tl.zeros((CHAINS,), tl.float32)
    m2 = tl.zeros((CHAINS,), tl.float32)
    count = 0.0
    a0, a1, a2, a3, a4, a5, a6, a7 = _eight(start, eights > 0, CHAINS)
    for eight in range(eights):
        ahead = start + (eight + 1) * 8 * CHAINS
        b0, b1, b2, b3, b4, b5, b6, b7 = _eight(ahead, eight + 1 < eights, CHAINS)
        mean, m2 = _include(a0, mean, m2, count + 1)
        mean, m2 = _include(a1, mean, m2, count + 2)
        mean, m2 = _include(a2, mean, m2, count + 3)
        mean, m2 = _include(a3, mean, m2, count + 4)
        mean, m2 = _include(a4, mean, m2, count + 5)
        mean, m2 = _include(a5, mean, m2, count + 6)
        mean, m2 = _include(a6, mean, m2, count + 7)
        mean, m2 = _include(a7, mean, m2, count + 8)
        count += 8
        a0, a1, a2, a3, a4, a5, a6, a7 = b0, b1, b2, b3, b4, b5, b6, b7
    for step in range(eights * 8, steps):
        count += 1
        mean, m2 = _include(tl.load(start + step * CHAINS), mean, m2, count)
    left = chain < length - steps * CHAINS
    last = tl.load(start + steps * CHAINS, mask=left, other=0.0)
    longer, more = _include(last, mean, m2, count + 1)
    mean = tl.where(left, longer, mean)
    m2 = tl.where(left, more, m2)
    counts = tl.where(left, count + 1, count)
    mean, m2, counts = _join(mean, m2, counts, 16, 16)  # the 32 chains of each of 16 warps
    mean, m2, counts = _join(mean, m2, counts, 16, 8)
    mean, m2, counts = _join(mean, m2, counts, 16, 4)
    mean, m2, counts = _join(mean, m2, counts, 16, 2)
    mean, m2, counts = _join(mean, m2, counts, 16, 1)
    mean, m2, counts = _join(mean, m2, counts, 1, 8)  # the warps
    mean, m2, counts = _join(mean, m2, counts, 1, 4)
    mean, m2, counts = _join(mean, m2, counts, 1, 2)
    mean, m2, counts = _join(mean, m2, counts, 1, 1)
    only = group + tl.arange(0, 1)
    tl.store(mean_of + only, mean.to(mean_of.dtype.element_ty))
    tl.store(rstd_of + only, tl.rsqrt(tl.div_rn(m2, counts) + eps).to(rstd_of.dtype.element_ty))


@triton.jit
def _eight(at, there, CHAINS: tl.constexpr):
    """The next eight numbers of every chain."""
    return (
        tl.load(at, mask=there),
        tl.load(at + CHAINS, mask=there),
        tl.load(at + 2 * CHAINS, mask=there),
        tl.load(at + 3 * CHAINS, mask=there),
        tl.load(at + 4 * CHAINS, mask=there),
        tl.load(at + 5 * CHAINS, mask=there),
        tl.load(at + 6 * CHAINS, mask=there),
        tl.load(at + 7 * CHAINS, mask=there),
    )


@triton.jit
def _include(x, mean, m2, count):
    """One more number in each chain (Welford, Technometrics 4, 1962), which has `count` then.

    `quotient` is delta / count rounded to nearest, in fewer instructions. The first guess is off
    by at most 1.5 units in the last place, the remainder by fma is exact below 2^23, and the
    correction leaves an error below the least distance of a quotient from a midpoint,
    1 / (2 count) units, as long as count is below 2^24 / 3.
    """
    x = x.to(tl.float32)
    delta = x - mean
    share = tl.div_rn(1.0, count)
    quotient = delta * share
    quotient = tl.fma(tl.fma(-quotient, count, delta), share, quotient)
    mean += quotient
    return mean, tl.fma(delta, x - mean, m2)


@triton.jit
def _join(mean, m2, count, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Join the two halves of each row of chains (Chan et al., Stanford STAN-CS-79-773)."""
    mean, other = _halves(mean, ROWS, HALF)
    m2, other_m2 = _halves(m2, ROWS, HALF)
    count, more = _halves(count, ROWS, HALF)
    delta = other - mean
    share = tl.div_rn(more, count + more)
    return (
        tl.fma(delta, share, mean).reshape(ROWS * HALF),
        tl.fma(delta * delta * count, share, m2 + other_m2).reshape(ROWS * HALF),
        (count + more).reshape(ROWS * HALF),
    )


@triton.jit
def _halves(x, ROWS: tl.constexpr, HALF: tl.constexpr):
    return tl.split(x.reshape(ROWS, 2, HALF).permute(0, 2, 1))


@triton.jit(do_not_specialize=["channels", "per_group"])
def _normalise(
    x,
    mean_of,
    rstd_of,
    weight,
    bias,
    normed,
    channels,
    per_group,
    area,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A part of one channel, of which a group has `per_group`; then SiLU, x * sigmoid(x)."""
    plane = tl.program_id(0)
    channel = plane % channels
    group = plane // per_group
    mean = tl.load(mean_of + group).to(tl.float32)
    scale = tl.load(rstd_of + group).to(tl.float32) * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - scale * mean
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < area
    start = plane.to(tl.int64) * area
    value = tl.fma(tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32), scale, shift)
    value = value.to(normed.dtype.element_ty)
    if SILU:
        wide = value.to(tl.float32)
        value = tl.div_rn(wide, 1 + libdevice.exp(-wide)).to(normed.dtype.element_ty)
    tl.store(normed + start + at, value, mask=inside)


@triton.jit(do_not_specialize=["channels"])
def _add(x, bias, per_plane, residual, channels, area, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < area
    start = plane.to(tl.int64) * area
    value = _sum(tl.load(x + start + at, mask=inside, other=0.0), tl.load(bias + plane % channels))
    if per_plane is not None:
        value = _sum(value, tl.load(per_plane + plane))
    if residual is not None:
        value = _sum(value, tl.load(residual + start + at, mask=inside, other=0.0))
    tl.store(x + start + at, value, mask=inside)


@triton.jit
def _sum(one, other):
    return (one.to(tl.float32) + other.to(tl.float32)).to(one.dtype)
