"""Triton kernels for the operations of `fused_operations`, on the current device and stream.

Pictures lie in `channels_last` memory: a pixel's channels side by side. Every sum is made in
float32, in an order that follows from the shape of one row alone, so that a row has the same bits
whatever else is in the batch. Results are rounded once.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from torch import Tensor

_PIXELS = 128  # that a tile of statistics takes
_CHANNELS = 64
_CHUNKS = 256  # in which one picture's pixels are summed, at most


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
    """Channel by channel the moments, from them what scales and shifts a group, then that."""
    x = x.contiguous(memory_format=torch.channels_last)
    rows, channels, height, width = x.shape
    pixels = height * width
    tiles = triton.cdiv(pixels, _PIXELS)
    per_chunk = triton.cdiv(tiles, _CHUNKS)
    chunks = triton.cdiv(tiles, per_chunk)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": x.device}
    mean, m2 = (torch.empty(rows, chunks, channels, **floats) for _ in range(2))
    grid = rows, chunks, triton.cdiv(channels, _CHANNELS)
    _channel_moments[grid](
        x, mean, m2, pixels, channels, per_chunk, _PIXELS, _CHANNELS, num_warps=4
    )
    scale, shift = (torch.empty(rows, channels, **floats) for _ in range(2))
    per_group = channels // groups
    stride = before.stride(0) if before is not None and before.ndim == 2 else 0
    _group_affine[rows, groups](
        mean,
        m2,
        before,
        stride,
        weight,
        bias,
        scale,
        shift,
        pixels,
        channels,
        chunks,
        per_chunk * _PIXELS,
        eps * gain[0] ** 2,
        gain[0],
        per_group,
        max(triton.next_power_of_2(per_group), 64),
        32,
        num_warps=4,
    )
    normed = torch.empty_like(x)
    tile = _tile(channels)
    # Pixels along x, as only there CUDA counts beyond 65,535.
    grid = triton.cdiv(pixels, tile[0]), triton.cdiv(channels, tile[1]), rows
    _affine[grid](x, scale, shift, normed, pixels, channels, gain[1], silu, *tile, num_warps=4)
    return normed


def add(
    x: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    more: Tensor | None = None,
    gain: float = 1.0,
) -> Tensor:
    """In the memory of x."""
    if not x.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    rows, channels, height, width = x.shape
    pixels = rows * height * width
    tile = _tile(channels)
    grid = triton.cdiv(pixels, tile[0]), triton.cdiv(channels, tile[1])
    _add[grid](x, bias, residual, more, pixels, channels, gain, *tile, num_warps=4)
    return x


def layer_norm(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A few tokens at once."""
    normed = torch.empty_like(x)
    width = x.shape[-1]
    tokens = x.numel() // width
    each = 4 if width <= 1024 else 2
    _layer_norm[triton.cdiv(tokens, each),](
        x,
        before,
        weight,
        bias,
        normed,
        tokens,
        width,
        eps,
        each,
        triton.next_power_of_2(width),
        num_warps=4,
    )
    return normed


def geglu(x: Tensor) -> Tensor:
    """A tile of both halves at once."""
    inner = x.shape[-1] // 2
    gated = x.new_empty(*x.shape[:-1], inner)
    tokens = gated.numel() // inner
    grid = triton.cdiv(tokens, 4), triton.cdiv(inner, 512)
    _geglu[grid](x, gated, tokens, inner, 4, 512, num_warps=4)
    return gated


def upsample(x: Tensor, weight: Tensor, bias: Tensor, gain: float = 1.0) -> Tensor:
    """One convolution gives the four pixels of a pixel, side by side as channels.

    Shi et al. (arXiv 1609.05158) show that convolving first is the same.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    wide, channels = weight.shape[:2]
    layout: dict[str, Any] = {
        "dtype": x.dtype,
        "device": x.device,
        "memory_format": torch.channels_last,
    }
    quarters = torch.empty((4 * wide, channels, 2, 2), **layout)
    _quarters[wide, triton.cdiv(channels, 256), 16](
        weight, quarters, *weight.stride(), wide, channels, 256, num_warps=4
    )
    convolved = F.conv2d(x, quarters, padding=1)
    rows, _, height, width = x.shape
    larger = torch.empty((rows, wide, 2 * height, 2 * width), **layout)
    tile = _tile(wide)
    grid = rows * 2 * height, triton.cdiv(2 * width, tile[0]), triton.cdiv(wide, tile[1])
    _interleave[grid](convolved, bias, larger, height, width, wide, gain, *tile, num_warps=4)
    return larger


def weigh(x: Tensor, weight: Tensor) -> Tensor:
    """In the memory of x, whatever its layout."""
    rows, numbers = len(x), x[0].numel()
    _weigh[rows, triton.cdiv(numbers, 4096)](x, weight, numbers, 4096, num_warps=4)
    return x


def _tile(channels: int) -> tuple[int, int]:
    """Pixels and channels of a tile of 4,096 numbers or so for an element-wise kernel."""
    width = min(triton.next_power_of_2(channels), 128)
    return max(4096 // width, 1), width


@triton.jit(do_not_specialize=["pixels", "per_chunk"])
def _channel_moments(
    x, mean_of, m2_of, pixels, channels, per_chunk, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Mean and sum of squared deviations of each channel over a chunk of pixels.

    Tile by tile, joined as in Chan et al., Stanford STAN-CS-79-773.
    """
    row, chunk = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    own = channel < channels
    start = x + row.to(tl.int64) * pixels * channels + channel[None, :]
    mean = tl.zeros((CHANNELS,), tl.float32)
    m2 = tl.zeros((CHANNELS,), tl.float32)
    count = 0.0
    for tile in range(chunk * per_chunk, (chunk + 1) * per_chunk):
        pixel = tile * PIXELS + tl.arange(0, PIXELS)
        there = (pixel < pixels)[:, None] & own[None, :]
        more = tl.minimum(PIXELS, tl.maximum(pixels - tile * PIXELS, 0)).to(tl.float32)
        value = tl.load(start + pixel.to(tl.int64)[:, None] * channels, mask=there, other=0.0)
        value = value.to(tl.float32)
        middle = tl.sum(value, 0) / tl.maximum(more, 1.0)
        off = tl.where(there, value - middle[None, :], 0.0)
        delta = middle - mean
        total = tl.maximum(count + more, 1.0)
        mean += delta * (more / total)
        m2 += tl.sum(off * off, 0) + delta * delta * (count * more / total)
        count += more
    at = (row * tl.num_programs(1) + chunk) * channels + channel
    tl.store(mean_of + at, mean, mask=own)
    tl.store(m2_of + at, m2, mask=own)


@triton.jit(
    do_not_specialize=["before_stride", "pixels", "channels", "chunks", "per_chunk", "per_group"]
)
def _group_affine(
    mean_of,
    m2_of,
    before,
    before_stride,
    weight,
    bias,
    scale_of,
    shift_of,
    pixels,
    channels,
    chunks,
    per_chunk,
    eps,
    gain,
    per_group,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """The scale and shift of each channel that normalise its group."""
    row, group = tl.program_id(0), tl.program_id(1)
    member = tl.arange(0, CHANNELS)
    inside = member < per_group
    channel = group * per_group + member
    added = tl.zeros((CHANNELS,), tl.float32)
    if before is not None:
        added = tl.load(before + row * before_stride + channel, mask=inside, other=0.0)
        added = added.to(tl.float32) * gain
    start = row * chunks * channels + channel[None, :]
    size = (pixels * per_group).to(tl.float32)
    sums = tl.zeros((CHANNELS,), tl.float32)
    for first in range(0, chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)
        there = (chunk < chunks)[:, None] & inside[None, :]
        count = tl.minimum(per_chunk, pixels - chunk * per_chunk).to(tl.float32)
        mean = tl.load(mean_of + start + chunk[:, None] * channels, mask=there, other=0.0)
        sums += tl.sum(tl.where(there, (mean + added[None, :]) * count[:, None], 0.0), 0)
    middle = tl.sum(sums, 0) / size
    squares = tl.zeros((CHANNELS,), tl.float32)
    for first in range(0, chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)
        there = (chunk < chunks)[:, None] & inside[None, :]
        count = tl.minimum(per_chunk, pixels - chunk * per_chunk).to(tl.float32)
        at = start + chunk[:, None] * channels
        off = tl.load(mean_of + at, mask=there, other=0.0) + added[None, :] - middle
        m2 = tl.load(m2_of + at, mask=there, other=0.0)
        squares += tl.sum(tl.where(there, m2 + off * off * count[:, None], 0.0), 0)
    rstd = tl.rsqrt(tl.sum(squares, 0) / size + eps)
    scale = rstd * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    at = row * channels + channel
    tl.store(scale_of + at, scale, mask=inside)
    tl.store(shift_of + at, shift + (added - middle) * scale, mask=inside)


@triton.jit(do_not_specialize=["pixels"])
def _affine(
    x,
    scale_of,
    shift_of,
    result,
    pixels,
    channels,
    gain,
    SILU: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(2)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    own = channel < channels
    there = (pixel < pixels)[:, None] & own[None, :]
    scale = tl.load(scale_of + row * channels + channel, mask=own, other=0.0)
    shift = tl.load(shift_of + row * channels + channel, mask=own, other=0.0)
    at = row.to(tl.int64) * pixels * channels + pixel.to(tl.int64)[:, None] * channels
    at += channel[None, :]
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    value = value * scale[None, :] + shift[None, :]
    if SILU:
        value = value / (1 + tl.exp(-value))
    tl.store(result + at, (value * gain).to(result.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["pixels"])
def _add(
    x, bias, residual, more, pixels, channels, gain, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    own = channel < channels
    there = (pixel < pixels)[:, None] & own[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    added = tl.load(bias + channel, mask=own, other=0.0).to(tl.float32)
    if more is not None:
        added += tl.load(more + channel, mask=own, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) + gain * added[None, :]
    if residual is not None:
        value += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    tl.store(x + at, value.to(x.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tokens"])
def _layer_norm(
    x, before, weight, bias, normed, tokens, width, eps, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, WIDTH)
    own = column < width
    there = (token < tokens)[:, None] & own[None, :]
    at = token.to(tl.int64)[:, None] * width + column[None, :]
    added = tl.load(before + column, mask=own, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) + added[None, :]
    middle = tl.sum(value, 1) / width
    off = tl.where(there, value - middle[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(off * off, 1) / width + eps)
    scale = tl.load(weight + column, mask=own, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=own, other=0.0).to(tl.float32)
    value = off * rstd[:, None] * scale[None, :] + shift[None, :]
    tl.store(normed + at, value.to(normed.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tokens"])
def _geglu(x, gated, tokens, inner, TOKENS: tl.constexpr, INNER: tl.constexpr):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * INNER + tl.arange(0, INNER)
    there = (token < tokens)[:, None] & (column < inner)[None, :]
    at = token.to(tl.int64)[:, None] * inner * 2 + column[None, :]
    hidden = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gate = tl.load(x + at + inner, mask=there, other=0.0).to(tl.float32)
    value = hidden * _gelu(gate)
    at = token.to(tl.int64)[:, None] * inner + column[None, :]
    tl.store(gated + at, value.to(gated.dtype.element_ty), mask=there)


@triton.jit
def _gelu(x):
    """x times the normal distribution function (arXiv 1606.08415).

    By Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7, small beside 16 bits.
    """
    z = tl.abs(x) * 0.7071067811865476
    t = 1 / (1 + 0.3275911 * z)
    tail = 1.061405429 * t - 1.453152027
    tail = tail * t + 1.421413741
    tail = tail * t - 0.284496736
    tail = tail * t + 0.254829592
    tail = 0.5 * tail * t * tl.exp(-z * z)
    return x * tl.where(x < 0, tail, 1 - tail)


@triton.jit
def _quarters(
    weight, quarters, stride_d, stride_c, stride_h, stride_w, wide, channels, CHANNELS: tl.constexpr
):
    """For each quarter of a pixel the 2x2 sums of the 3x3 weights that meet the same pixel.

    Of three in a line, the upper or left quarter sees the first, and the others together; the
    lower or right one the first two together, and the last.
    """
    out, quarter, tap = tl.program_id(0), tl.program_id(2) // 4, tl.program_id(2) % 4
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    own = channel < channels
    lower, right = quarter // 2, quarter % 2
    line, place = tap // 2 * (1 + lower), tap % 2 * (1 + right)
    start = weight + out * stride_d + channel * stride_c
    total = tl.zeros((CHANNELS,), tl.float32)
    for y in range(line, line + 1 + (tap // 2 + lower) % 2):
        for x in range(place, place + 1 + (tap % 2 + right) % 2):
            value = tl.load(start + y * stride_h + x * stride_w, mask=own, other=0.0)
            total += value.to(tl.float32)
    at = ((quarter * wide + out) * 4 + tap).to(tl.int64) * channels + channel
    tl.store(quarters + at, total.to(quarters.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["height", "width"])
def _interleave(
    convolved,
    bias,
    larger,
    height,
    width,
    channels,
    gain,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A part of a line of the larger picture, from the quarters of pixels, plus the bias."""
    line = tl.program_id(0) % (2 * height)
    row = (tl.program_id(0) // (2 * height)).to(tl.int64)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    own = channel < channels
    there = (pixel < 2 * width)[:, None] & own[None, :]
    quarter = 2 * (line % 2) + pixel % 2
    upper, left = line // 2 + line % 2, pixel // 2 + pixel % 2
    at = ((row * (height + 1) + upper) * (width + 1) + left) * 4 + quarter
    value = tl.load(
        convolved + at[:, None] * channels + channel[None, :], mask=there, other=0.0
    ).to(tl.float32)
    value += gain * tl.load(bias + channel, mask=own, other=0.0).to(tl.float32)[None, :]
    at = (row * 2 * height + line) * 2 * width + pixel
    at = at[:, None] * channels + channel[None, :]
    tl.store(larger + at, value.to(larger.dtype.element_ty), mask=there)


@triton.jit
def _weigh(x, weight, numbers, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < numbers
    start = x + row.to(tl.int64) * numbers
    value = tl.load(start + at, mask=there, other=0.0).to(tl.float32) * tl.load(weight + row)
    tl.store(start + at, value.to(x.dtype.element_ty), mask=there)
