"""Which kernels compute attention: chosen once for a model on its device, never by torch's mood.

A captured graph keeps the kernels that it was captured with, so eager and captured steps must not
choose each on their own.
"""

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.attention_processor import Attention as Layer
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Fastest first for SDXL at 1024x1024, as `scripts/bench.py pieces` measures it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A choice among torch's backends of scaled dot product attention.

    A layer whose shapes it cannot do is computed by the next one in order, graph or not.
    """

    name: str

    def kernels(self) -> AbstractContextManager[None]:
        """While it lasts, attention is computed by these."""
        backends = list(BACKENDS.values())
        usable = backends[backends.index(BACKENDS[self.name]) :]
        chosen: AbstractContextManager[None] = sdpa_kernel(usable, set_priority=True)
        return chosen


def choose(unet: Any) -> Attention:
    """The first backend that can do every width of attention head in this UNet, where it lies."""
    layers = [module for module in unet.modules() if isinstance(module, Layer)]
    widths = {layer.inner_dim // layer.heads for layer in layers}
    works = (name for name in BACKENDS if _works(name, widths, unet.device, unet.dtype))
    return Attention(next(works))


def _works(name: str, widths: Iterable[int], device: torch.device, dtype: torch.dtype) -> bool:
    with warnings.catch_warnings(), sdpa_kernel(BACKENDS[name]):
        warnings.simplefilter("ignore")  # in which torch explains why a backend cannot
        try:
            for width in widths:
                query = torch.zeros(2, 2, 64, width, device=device, dtype=dtype)
                text = torch.zeros(2, 2, 77, width, device=device, dtype=dtype)
                F.scaled_dot_product_attention(query, text, text)
        except RuntimeError:
            return False
    return True
