"""Convolutions, norms and blocks of them as diffusers' do them, in fewer and larger kernels.

Each takes over the children of the module that it stands for under their names, so that weights
keep their names too. Pictures lie in channels_last memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.downsampling import Downsample2D
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn

from comicgen.diffusion.fused_operations import add, group_norm, upsample, weigh


class GroupNorm(nn.Module):
    """Group normalisation, with the SiLU that follows it.

    By its `gain` what comes in and what goes out is larger than what it stands for.
    """

    def __init__(self, norm: nn.GroupNorm, silu: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._groups, self._eps, self._silu = norm.num_groups, norm.eps, silu
        self.gain = 1.0, 1.0

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """(R, C, H, W), and (R, C) or (C,) that is added before -> (R, C, H, W)."""
        settings = self._groups, self.weight, self.bias, self._eps
        return group_norm(x, *settings, self._silu, before, self.gain)


class Conv2d(nn.Module):
    """A convolution, with the sums that follow it.

    By its `gain` what comes in is larger than what it stands for, and so is what goes out.
    """

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = convolution.weight
        self.bias: nn.Parameter = convolution.bias
        self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)
        self._how: tuple[Any, ...] = (
            convolution.stride,
            convolution.padding,
            convolution.dilation,
        )
        self.gain = 1.0

    def product(self, x: Tensor) -> Tensor:
        """(R, C, H, W) -> (R, D, h, w), without the bias."""
        return F.conv2d(x, self.weight, None, *self._how)

    def forward(self, x: Tensor) -> Tensor:
        """(R, C, H, W) -> (R, D, h, w)."""
        return add(self.product(x), self.bias, gain=self.gain)


class ResnetBlock(nn.Module):
    """A ResNet block of SDXL (arXiv 1512.03385)."""

    @staticmethod
    def stands_for(block: Any) -> bool:
        """Whether it does what the block does."""
        return (
            type(block) is ResnetBlock2D
            and (
                block.time_embedding_norm == "default"
                or (block.time_embedding_norm == "group" and block.time_emb_proj is None)
            )
            and is_plain_block(block)
        )

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = GroupNorm(block.norm1, silu=True), GroupNorm(block.norm2, True)
        self.conv1, self.conv2 = Conv2d(block.conv1), Conv2d(block.conv2)
        self.time_emb_proj = block.time_emb_proj
        self.conv_shortcut = Conv2d(block.conv_shortcut) if block.conv_shortcut else None

    def forward(self, x: Tensor, temb: Tensor | None = None) -> Tensor:
        """(R, C, H, W) and the embedded timestep (R, T), if it takes one -> (R, D, H, W)."""
        inner, before = self.conv1.product(self.norm1(x)), self.conv1.bias
        if temb is not None:
            before = self.time_emb_proj(F.silu(temb)) + before
        inner = self.conv2.product(self.norm2(inner, before))
        shortcut = self.conv_shortcut
        bias, gain = self.conv2.bias, self.conv2.gain
        if shortcut is None:
            return add(inner, bias, x, gain=gain)
        return add(inner, bias, shortcut.product(x), shortcut.bias, gain)


class Upsample(nn.Module):
    """Twice the size, each pixel repeated, then a convolution."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether it does what the module does."""
        return (
            type(module) is Upsample2D
            and module.use_conv
            and not module.use_conv_transpose
            and module.interpolate
            and module.norm is None
            and module.name == "conv"
            and is_plain(module.conv)
            and module.conv.kernel_size == (3, 3)
            and module.conv.padding == (1, 1)
        )

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.conv = Conv2d(module.conv)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """(R, C, H, W) -> (R, D, 2 H, 2 W), or of another size."""
        if output_size is None or tuple(output_size) == (2 * x.shape[2], 2 * x.shape[3]):
            return upsample(x, self.conv.weight, self.conv.bias, self.conv.gain)
        convolved: Tensor = self.conv(F.interpolate(x, size=tuple(output_size), mode="nearest"))
        return convolved


class Downsample(nn.Module):
    """Half the size by a convolution of stride 2."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether it does what the module does."""
        return (
            type(module) is Downsample2D
            and module.use_conv
            and module.padding != 0
            and module.norm is None
            and module.name == "op"
            and is_plain(module.conv)
        )

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.conv = Conv2d(module.conv)

    def forward(self, x: Tensor) -> Tensor:
        """(R, C, H, W) -> (R, D, H / 2, W / 2)."""
        halved: Tensor = self.conv(x)
        return halved


class Weights:
    """The weights of a ControlNet's rows: what is multiplied by them keeps its dtype."""

    def __init__(self, weight: Tensor) -> None:
        """(R, 1, 1, 1) float32."""
        self._weight = weight

    def __rmul__(self, residual: Tensor) -> Tensor:
        return weigh(residual, self._weight)


def is_plain(convolution: Any) -> bool:
    """Whether `Conv2d` stands for it."""
    return (
        type(convolution) is nn.Conv2d
        and convolution.bias is not None
        and convolution.padding_mode == "zeros"
        and convolution.groups == 1
    )


def is_plain_block(block: ResnetBlock2D) -> bool:
    """Whether a ResNet block is as SDXL's are, however it takes the timestep."""
    return (
        block.upsample is None
        and block.downsample is None
        and not block.skip_time_act
        and isinstance(block.nonlinearity, nn.SiLU)
        and block.dropout.p == 0
        and block.output_scale_factor == 1
        and all(
            each is None or is_plain(each)
            for each in (block.conv1, block.conv2, block.conv_shortcut)
        )
    )
