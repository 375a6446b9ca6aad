"""Modules that do with `kernels` what torch's and diffusers' do, bit for bit; for a GPU."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from comicgen.diffusion.fused_modules import is_plain, is_plain_block
from comicgen.diffusion.kernels import CHAINS, add, group_norm


def exchange(network: nn.Module) -> None:
    """Let our kernels do what they can in a network, in place; parameters stay what they are."""
    for name, child in network.named_children():
        own: nn.Module | None = None
        if type(child) is nn.GroupNorm and child.affine:
            own = GroupNorm(child)
        elif isinstance(child, nn.Conv2d) and is_plain(child):
            own = Conv2d(child)
        elif type(child) is ResnetBlock2D and ResnetBlock.stands_for(child):
            own = ResnetBlock(child)
        if own is None:
            exchange(child)
        else:
            setattr(network, name, own)


class GroupNorm(nn.Module):
    """Group normalisation by our kernel, where groups are large enough."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._groups, self._eps = norm.num_groups, norm.eps

    def forward(self, x: Tensor, silu: bool = False) -> Tensor:
        """(B, C, ...) -> the same shape."""
        settings = self._groups, self.weight, self.bias, self._eps
        # torch has kernels of their own for small groups, and for planes of one number.
        large = x.shape[1:].numel() >= self._groups * CHAINS and x.shape[2:].numel() > 1
        if large and silu and x.dtype.itemsize == 2:
            return group_norm(x, *settings, silu=True)
        normed = (group_norm if large else F.group_norm)(x, *settings)
        return F.silu(normed) if silu else normed


class Conv2d(nn.Module):
    """A convolution, with our kernel for the sums that follow it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._how: tuple[Any, ...] = (
            convolution.stride,
            convolution.padding,
            convolution.dilation,
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
        return block.time_embedding_norm == "default" and is_plain_block(block)

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


def differing(device: torch.device, dtype: torch.dtype) -> Iterator[str]:
    """What does not give torch's bits there, for numbers like those of a network.

    Raises:
        Exception: whatever Triton, or a compiler that it needs, cannot do.
    """
    chance = torch.Generator().manual_seed(0)

    def numbers(*shape: int, spread: float = 1.5) -> Tensor:
        return (torch.randn(shape, generator=chance) * spread + 0.5).to(device, dtype)

    with torch.random.fork_rng(devices=[]):
        plain = ResnetBlock2D(in_channels=96, out_channels=128, temb_channels=16)
    plain.to(device, dtype).eval()
    for parameter in plain.parameters():
        parameter.data.copy_(numbers(*parameter.shape, spread=0.05))
    block, norm = ResnetBlock(plain), nn.GroupNorm(32, 96, eps=1e-6).to(device, dtype)
    norm.weight.data, norm.bias.data = numbers(96), numbers(96)
    for spread in (1.5, 0.002):  # beside the smaller one eps counts
        x, time = numbers(2, 96, 40, 56, spread=spread), numbers(2, 16)
        if not torch.equal(GroupNorm(norm)(x), norm(x)):
            yield f"group norms in {dtype} of deviation {spread}"
        if not torch.equal(block(x, time), plain(x, time)):
            yield f"ResNet blocks in {dtype} of deviation {spread}"
