"""Triton kernels that give the bits of torch's own on a GPU, in less time.

torch's are the reference: `differing` names the kernel that is not like its reference.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn
from triton.language.extra import libdevice

CHAINS = 512
"""In so many chains torch sums a group of at least so many numbers; smaller groups otherwise."""

_PLANE = 4096  # numbers of one plane that a program takes

# Where torch's compiler joins a product and a sum, so do these kernels, by name; nowhere else.
_EXACT = {"num_warps": 4, "enable_fp_fusion": False}


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool = False
) -> Tensor:
    """Group normalisation (arXiv 1803.08494) of (B, C, ...), in groups of `CHAINS` or more.

    `weight` and `bias` are (C,) in the dtype of `x`. torch's kernel waits for every number of a
    chain; here the next eight are on their way. `silu` is for 16 bits, in which every number
    was compared.
    """
    x = x.contiguous()
    batch, channels = x.shape[:2]
    area = x[0, 0].numel()
    mean = torch.empty(batch * groups, dtype=x.dtype, device=x.device)
    rstd = torch.empty_like(mean)
    normed = torch.empty_like(x)
    together = channels // groups
    _moments[(batch * groups,)](x, mean, rstd, together * area, _rounded(eps, x.dtype), **_EXACT)
    grid = batch * channels, triton.cdiv(area, _PLANE)
    _normalise[grid](
        x, mean, rstd, weight, bias, normed, channels, together, area, silu, _PLANE, **_EXACT
    )
    return normed


def add(
    x: Tensor, bias: Tensor, per_plane: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """Add `bias` (C,), `per_plane` (B, C) and a residual to (B, C, H, W) in place; returns x.

    Each sum is rounded, as if there was a kernel for each. torch's kernels take one number at a
    time where something is broadcast.
    """
    if not x.is_contiguous():
        x = x.contiguous()
    batch, channels, height, width = x.shape
    per_plane = per_plane.contiguous() if per_plane is not None else None
    residual = residual.contiguous() if residual is not None else None
    grid = batch * channels, triton.cdiv(height * width, _PLANE)
    _add[grid](x, bias, per_plane, residual, channels, height * width, _PLANE, **_EXACT)
    return x


@cache
def _rounded(eps: float, dtype: torch.dtype) -> float:
    """torch's kernel takes eps in the dtype of what it normalises."""
    return torch.tensor(eps, dtype=dtype).item()


def differing(device: torch.device, dtype: torch.dtype) -> Iterator[str]:
    """The kernels that do not give torch's bits there, for numbers like those of a network.

    Raises:
        Exception: whatever Triton, or a compiler that it needs, cannot do.
    """
    chance = torch.Generator().manual_seed(0)

    def numbers(*shape: int, spread: float = 1.5) -> Tensor:
        return (torch.randn(shape, generator=chance) * spread + 0.5).to(device, dtype)

    plain = ResnetBlock2D(in_channels=64, out_channels=96, temb_channels=16, groups=8)
    plain.to(device, dtype).eval()
    for parameter in plain.parameters():
        parameter.data.copy_(numbers(*parameter.shape, spread=0.05))
    own = ResnetBlock(plain)
    for spread in (1.5, 0.002):
        x, weight, bias = numbers(2, 64, 40, 57, spread=spread), numbers(64), numbers(64)
        theirs = F.group_norm(x, 8, weight, bias, 1e-5)
        if not torch.equal(group_norm(x, 8, weight, bias, 1e-5), theirs):
            yield f"group norms of deviation {spread}"
        time = numbers(2, 16)
        if not torch.equal(own(x, time), plain(x, time)):
            yield f"ResNet blocks of deviation {spread}"


def exchange(network: nn.Module) -> None:
    """Let our kernels do what they can in a network, in place; parameters stay what they are."""
    for name, child in network.named_children():
        own: nn.Module | None = None
        if type(child) is nn.GroupNorm and child.affine:
            own = GroupNorm(child)
        elif type(child) is nn.Conv2d and _is_plain(child):
            own = Conv2d(child)
        elif type(child) is ResnetBlock2D and ResnetBlock.stands_for(child):
            own = ResnetBlock(child)
        if own is None:
            exchange(child)
        else:
            setattr(network, name, own)


def _is_plain(convolution: nn.Conv2d) -> bool:
    return convolution.bias is not None and convolution.padding_mode == "zeros"


class GroupNorm(nn.Module):
    """Group normalisation by our kernel, where groups are large enough."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._groups, self._eps = norm.num_groups, norm.eps

    def forward(self, x: Tensor, silu: bool = False) -> Tensor:
        """(B, C, ...) -> the same shape."""
        settings = self._groups, self.weight, self.bias, self._eps
        if x[0].numel() < self._groups * CHAINS:
            normed = F.group_norm(x, *settings)
        elif silu and x.dtype.itemsize == 2:
            return group_norm(x, *settings, silu=True)
        else:
            normed = group_norm(x, *settings)
        return F.silu(normed) if silu else normed


class Conv2d(nn.Module):
    """A convolution padded with zeros, of which our kernel does all sums that follow it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._how: tuple[Any, ...] = (
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.groups,
        )

    def forward(
        self, x: Tensor, per_plane: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w), to which (B, D) and (B, D, h, w) may be added."""
        return add(F.conv2d(x, self.weight, None, *self._how), self.bias, per_plane, residual)


class ResnetBlock(nn.Module):
    """A ResNet block of SDXL (arXiv 1512.03385) with a kernel before and after a convolution."""

    @staticmethod
    def stands_for(block: ResnetBlock2D) -> bool:
        """Whether it does what the block does."""
        convolutions = block.conv1, block.conv2, block.conv_shortcut
        return (
            block.time_embedding_norm == "default"
            and block.upsample is None
            and block.downsample is None
            and not block.skip_time_act
            and isinstance(block.nonlinearity, nn.SiLU)
            and block.dropout.p == 0
            and block.output_scale_factor == 1
            and all(each is None or _is_plain(each) for each in convolutions)
        )

    def __init__(self, block: ResnetBlock2D) -> None:
        super().__init__()
        self.norm1, self.norm2 = GroupNorm(block.norm1), GroupNorm(block.norm2)
        self.conv1, self.conv2 = Conv2d(block.conv1), Conv2d(block.conv2)
        self.time_emb_proj = block.time_emb_proj
        self.conv_shortcut = Conv2d(block.conv_shortcut) if block.conv_shortcut else None

    def forward(self, x: Tensor, temb: Tensor | None = None) -> Tensor:
        """(B, C, H, W) and the embedded timestep (B, T), if it takes one -> (B, D, H, W)."""
        time = None if temb is None else self.time_emb_proj(F.silu(temb))
        inner = self.conv1(self.norm1(x, silu=True), per_plane=time)
        residual = self.conv_shortcut(x) if self.conv_shortcut else x
        result: Tensor = self.conv2(self.norm2(inner, silu=True), residual=residual)
        return result


@triton.jit
def _moments(x, mean_of, rstd_of, length, eps):
    """Mean and 1 / deviation of one group of `length` numbers."""
    group = tl.program_id(0)
    chain = tl.arange(0, 512)
    start = x + group.to(tl.int64) * length + chain
    steps = length // 512
    eights = steps // 8
    mean = tl.zeros((512,), tl.float32)
    m2 = tl.zeros((512,), tl.float32)
    count = 0.0
    a0, a1, a2, a3, a4, a5, a6, a7 = _eight(start, eights > 0)
    for eight in range(eights):
        b0, b1, b2, b3, b4, b5, b6, b7 = _eight(start + (eight + 1) * 4096, eight + 1 < eights)
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
        mean, m2 = _include(tl.load(start + step * 512), mean, m2, count)
    left = chain < length - steps * 512
    last = tl.load(start + steps * 512, mask=left, other=0.0)
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
def _eight(at, there):
    """The next eight numbers of every chain."""
    return (
        tl.load(at, mask=there),
        tl.load(at + 512, mask=there),
        tl.load(at + 1024, mask=there),
        tl.load(at + 1536, mask=there),
        tl.load(at + 2048, mask=there),
        tl.load(at + 2560, mask=there),
        tl.load(at + 3072, mask=there),
        tl.load(at + 3584, mask=there),
    )


@triton.jit
def _include(x, mean, m2, count):
    """One more number in each chain (Welford, Technometrics 4, 1962), which has `count` then.

    `quotient` is delta / count rounded to nearest: the reciprocal is, and one correction by the
    exact remainder suffices then (Markstein, IBM J. Res. Dev. 34, 1990).
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


@triton.jit
def _normalise(
    x,
    mean_of,
    rstd_of,
    weight,
    bias,
    normed,
    channels,
    together,
    area,
    SILU: tl.constexpr,
    PLANE: tl.constexpr,
):
    """A part of one channel, of which `together` are a group; x * sigmoid(x) of that, if wanted."""
    plane = tl.program_id(0)
    channel = plane % channels
    group = plane // together
    mean = tl.load(mean_of + group).to(tl.float32)
    scale = tl.load(rstd_of + group).to(tl.float32) * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - scale * mean
    at = tl.program_id(1) * PLANE + tl.arange(0, PLANE)
    inside = at < area
    start = plane.to(tl.int64) * area
    value = tl.fma(tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32), scale, shift)
    value = value.to(normed.dtype.element_ty)
    if SILU:
        wide = value.to(tl.float32)
        value = tl.div_rn(wide, 1 + libdevice.exp(-wide)).to(normed.dtype.element_ty)
    tl.store(normed + start + at, value, mask=inside)


@triton.jit
def _add(x, bias, per_plane, residual, channels, area, PLANE: tl.constexpr):
    plane = tl.program_id(0)
    at = tl.program_id(1) * PLANE + tl.arange(0, PLANE)
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
