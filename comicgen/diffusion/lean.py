"""The arithmetic of diffusers' modules with less work, and the same bits on a GPU.

`lean` and `embed_once` exchange modules of a loaded network, which draws the same without.
Parameters keep their storage.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.activations import GEGLU
from diffusers.models.attention import FeedForward
from torch import Tensor, nn

from comicgen.diffusion.trial import why_not

_DIVISORS = ("output_scale_factor", "rescale_output_factor")
"""By which ResNet blocks and attention layers divide what they give, and which are mostly 1."""


def embed_once(controlnet: Any) -> None:
    """Let a ControlNet take embedded control images, in place. Images it takes as before."""
    if not isinstance(controlnet.controlnet_cond_embedding, EmbedOnce):
        controlnet.controlnet_cond_embedding = EmbedOnce(controlnet.controlnet_cond_embedding)


def lean(network: Any) -> None:
    """Exchange what `SplitGEGLU`, `One` and, where they can be used, our kernels stand for."""
    weight = next(network.parameters())
    if not why_without_kernels(weight.device, weight.dtype):
        from comicgen.diffusion.kernel_modules import exchange

        exchange(network)
    for module in network.modules():
        if isinstance(module, FeedForward) and type(module.net[0]) is GEGLU:
            module.net[0] = SplitGEGLU(module.net[0])
        for divisor in _DIVISORS:
            if getattr(module, divisor, None) == 1:
                setattr(module, divisor, One())


@cache
def why_without_kernels(device: torch.device, dtype: torch.dtype) -> str:
    """Why our kernels are not used on a device; empty where they give torch's own bits.

    They must do so in float32 too, in which a VAE that overflows decodes again.
    """
    if device.type != "cuda":
        return f"{device} is no GPU"

    def wrong() -> list[str]:
        from comicgen.diffusion.kernel_modules import differing

        with torch.no_grad():
            return [each for own in {dtype, torch.float32} for each in differing(device, own)]

    return why_not(device, wrong, "would differ from torch's")


class EmbedOnce(nn.Module):
    """Embeds control images, and takes for embedded already what has no three channels.

    A ControlNet embeds its image at every step, although it is the same image; with this, what
    calls it can do so once.
    """

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, control: Tensor) -> Tensor:
        """(R, 3, H, W) images or (R, C, h, w) embeddings -> (R, C, h, w)."""
        embedded: Tensor = self.embedding(control) if control.shape[1] == 3 else control
        return embedded


class SplitGEGLU(nn.Module):
    """h * gelu(g) (arXiv 2002.05202), with h and g from one product each instead of one together.

    Both are contiguous then, and element-wise kernels twice as fast over them.
    """

    def __init__(self, whole: GEGLU) -> None:
        super().__init__()
        self.proj = whole.proj

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., inner)."""
        weight, bias = self.proj.weight.chunk(2), self.proj.bias.chunk(2)
        gate = F.gelu(F.linear(hidden, weight[1], bias[1]))
        return F.linear(hidden, weight[0], bias[0]).mul_(gate)


class One:
    """Stands for 1 as a divisor: what is divided by it is left as it is."""

    def __rtruediv__(self, dividend: Tensor) -> Tensor:
        return dividend
