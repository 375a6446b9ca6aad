"""The fast path: modules of a loaded network exchanged for fused ones, in one place.

A network that is not given to these functions is diffusers' own, and draws the same pictures to
within rounding.
"""

from typing import Any

from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn

from comicgen.diffusion.fused_attention import (
    PixelAttention,
    TextKeys,
    Transformer,
    TransformerBlock,
)
from comicgen.diffusion.fused_modules import (
    Conv2d,
    Downsample,
    GroupNorm,
    ResnetBlock,
    Upsample,
    Weights,
    is_plain,
)
from comicgen.errors import NumericsError

_STANDING_FOR: tuple[Any, ...] = (ResnetBlock, Transformer, Upsample, Downsample, PixelAttention)

_BLOCKS = (ResnetBlock2D, Attention, Upsample2D)
"""What a VAE's decoder is made of."""

SMALLER = 2.0**-6
"""By which the numbers inside a VAE are made smaller, so that 16 bits hold SDXL's own."""


def fuse(network: Any) -> None:
    """Exchange what fused modules stand for in a UNet, ControlNet or VAE's decoder, in place.

    A network with transformers takes what `text_keys` makes of the hidden states of a text from
    then on.
    """
    if isinstance(getattr(network, "conv_act", None), nn.SiLU):
        network.conv_norm_out = GroupNorm(network.conv_norm_out, silu=True)
        network.conv_act = nn.Identity()
    _exchange(network)
    network.fused = True
    blocks = [each for each in network.modules() if isinstance(each, TransformerBlock)]
    if blocks:
        network.text_keys = TextKeys(blocks)


def text_keys(network: Any, hidden: Tensor) -> Tensor:
    """What a network takes for the hidden states (R, 77, D) of a text: made once a batch.

    These themselves where the network is not fused.
    """
    keys = getattr(network, "text_keys", None)
    return hidden if keys is None else keys(hidden)


def weights(network: Any, weight: Tensor) -> Tensor | Weights:
    """What a ControlNet takes for the float32 weights (R, 1, 1, 1) of its rows."""
    return Weights(weight) if getattr(network, "fused", False) else weight


def fuse_decoder(vae: Any) -> None:
    """Fuse a VAE's decoder, and let it work on numbers that are `SMALLER`, in place.

    SDXL's VAE overflows in float16 between its layers, not in what it gives. There every number
    is followed by a norm, which divides by its size; so the numbers may as well be smaller by a
    power of two, which costs precision only where they are below 2^-8.

    Raises:
        NumericsError: it has blocks that no fused module stands for.
    """
    decoder = vae.decoder
    fuse(decoder)
    if unknown := {type(each).__name__ for each in decoder.modules() if isinstance(each, _BLOCKS)}:
        raise NumericsError(
            f"fused numerics do not know the VAE's {' and '.join(sorted(unknown))}; use "
            "--numerics plain in a new folder"
        )
    for module in decoder.modules():
        if isinstance(module, ResnetBlock):
            module.norm1.gain = module.norm2.gain = SMALLER, SMALLER
        if isinstance(module, Conv2d):
            module.gain = SMALLER
        if isinstance(module, PixelAttention):
            module.group_norm.gain = SMALLER, 1.0
            module.gain = SMALLER
    decoder.conv_norm_out.gain = SMALLER, 1.0
    decoder.conv_out.gain = 1.0
    decoder.conv_in = nn.Sequential(_Smaller(), decoder.conv_in)


class _Smaller(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SMALLER


def _exchange(network: nn.Module) -> None:
    for name, child in network.named_children():
        own = next((kind for kind in _STANDING_FOR if kind.stands_for(child)), None)
        if own is not None:
            setattr(network, name, own(child))
        elif isinstance(child, nn.Conv2d) and is_plain(child):
            setattr(network, name, Conv2d(child))
        elif type(child) is nn.GroupNorm:
            setattr(network, name, GroupNorm(child))
        else:
            _exchange(child)
