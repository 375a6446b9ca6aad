"""Modules that keep pictures in channels-last memory, for training on a GPU.

torch's group norm turns such pictures into channels-first, and so does the end of diffusers'
transformers; the convolution after it turns them back. That was a third of a training step here.
The mathematics and the parameters are the same.
"""

import torch
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for a CPU comes without it
    triton = None

TILE = 8192
"""Numbers that one program holds."""

if triton:

    @triton.jit
    def _sums(x, y, first, second, pixels, channels, tiles, high: tl.constexpr, wide: tl.constexpr):
        """Of each picture, tile of pixels and channel: the sums of y and of y * x."""
        picture, tile = tl.program_id(0), tl.program_id(1)
        p, c = tile * high + tl.arange(0, high), tl.arange(0, wide)
        at = (picture.to(tl.int64) * pixels + p[:, None]) * channels + c[None, :]
        inside = (p[:, None] < pixels) & (c[None, :] < channels)
        a = tl.load(x + at, inside, 0.0).to(tl.float32)
        b = tl.load(y + at, inside, 0.0).to(tl.float32)
        out = (picture * tiles + tile) * channels + c
        tl.store(first + out, tl.sum(b, 0), c < channels)
        tl.store(second + out, tl.sum(a * b, 0), c < channels)

    @triton.jit
    def _combined(
        x, y, out, of_x, of_y, constant, pixels, channels,
        both: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    ):  # fmt: skip
        """of_x * x + constant, plus of_y * y; the factors are one for each picture and channel."""
        picture, tile = tl.program_id(0), tl.program_id(1)
        p, c = tile * high + tl.arange(0, high), tl.arange(0, wide)
        at = (picture.to(tl.int64) * pixels + p[:, None]) * channels + c[None, :]
        inside = (p[:, None] < pixels) & (c[None, :] < channels)
        factor, known = picture * channels + c, c < channels
        result = tl.load(x + at, inside, 0.0).to(tl.float32)
        result = result * tl.load(of_x + factor, known)[None, :]
        result += tl.load(constant + factor, known)[None, :]
        if both:
            more = tl.load(y + at, inside, 0.0).to(tl.float32)
            result += more * tl.load(of_y + factor, known)[None, :]
        tl.store(out + at, result, inside)


def _tiling(x: Tensor) -> tuple[int, int, int, int, int]:
    """Pixels and channels of a picture, tiles of it, and a tile's pixels and channels."""
    channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    wide = triton.next_power_of_2(channels)
    high = min(TILE // wide, triton.next_power_of_2(pixels))
    return pixels, channels, triton.cdiv(pixels, high), high, wide


def sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the pixels of y and of y * x, (n, c), float32; both (n, c, h, w)."""
    pixels, channels, tiles, high, wide = _tiling(x)
    parts = [torch.empty(len(x), tiles, channels, device=x.device) for _ in range(2)]
    _sums[len(x), tiles](x, y, *parts, pixels, channels, tiles, high=high, wide=wide)
    return parts[0].sum(1), parts[1].sum(1)


def combined(
    x: Tensor, of_x: Tensor, constant: Tensor, y: Tensor | None = None, of_y: Tensor | None = None
) -> Tensor:
    """of_x * x + constant, plus of_y * y; pictures (n, c, h, w), factors (n, c), float32."""
    pixels, channels, tiles, high, wide = _tiling(x)
    out = torch.empty_like(x)
    both = y is not None
    _combined[len(x), tiles](
        x, y if both else x, out, of_x.contiguous(), of_y.contiguous() if both else of_x,
        constant.contiguous(), pixels, channels, both=both, high=high, wide=wide,
    )  # fmt: skip
    return out


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        count, channels = x.shape[:2]
        size = x[0].numel() // groups
        total, squares = (each.view(count, groups, -1).sum(2) / size for each in sums(x, x))
        spread = torch.rsqrt((squares - total.square()).clamp(min=0) + eps)
        mean, rstd = (each.repeat_interleave(channels // groups, 1) for each in (total, spread))
        of_x = rstd * weight.float()
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups = groups
        return combined(x, of_x, bias.float() - mean * of_x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, mean, rstd = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        count, channels = x.shape[:2]
        plain, along = sums(x, grad)
        along = (along - mean * plain) * rstd
        size = x[0].numel() // ctx.groups

        def mean_of_group(values: Tensor) -> Tensor:
            by_group = (values * weight.float()).view(count, ctx.groups, -1).sum(2) / size
            return by_group.repeat_interleave(channels // ctx.groups, 1)

        of_x = -rstd.square() * mean_of_group(along)
        constant = -rstd * mean_of_group(plain) - mean * of_x
        dx = combined(x, of_x, constant, grad, rstd * weight.float())
        return dx, along.sum(0).to(weight.dtype), plain.sum(0).to(weight.dtype), None, None


class GroupNorm(nn.GroupNorm):
    """The same as its parent, in channels-last memory where the pictures (n, c, h, w) are so."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4 or not input.is_cuda or triton is None:
            return super().forward(input)
        return _GroupNorm.apply(input, self.weight, self.bias, self.num_groups, self.eps)


class Transformer(Transformer2DModel):
    """The same as its parent, for linear projections, without the turn at its end."""

    def _get_output_for_continuous_inputs(
        self, hidden_states, residual, batch_size, height, width, inner_dim
    ):
        result = self.proj_out(hidden_states).view(batch_size, height, width, inner_dim)
        return result.permute(0, 3, 1, 2) + residual


def exchange(module: nn.Module) -> None:
    """Let the norms and transformers in `module` work in channels-last memory, in place."""
    for each in module.modules():
        if type(each) is nn.GroupNorm:
            each.__class__ = GroupNorm
        elif type(each) is Transformer2DModel and each.use_linear_projection:
            each.__class__ = Transformer
