"""The arithmetic of diffusers' modules with less work, and the same bits on a GPU.

`lean` and `embed_once` exchange modules of a loaded network, which draws the same without.
Parameters keep their storage.
"""

from typing import Any

import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.activations import GEGLU
from diffusers.models.attention import FeedForward
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor, nn


def embed_once(controlnet: Any) -> None:
    """Let a ControlNet take embedded control images, in place. Images it takes as before."""
    if not isinstance(controlnet.controlnet_cond_embedding, EmbedOnce):
        controlnet.controlnet_cond_embedding = EmbedOnce(controlnet.controlnet_cond_embedding)


def lean(network: Any) -> None:
    """Exchange what `SplitGEGLU` and `LeanAttention` can stand for, in place."""
    attention: Any = LeanAttention()
    for module in network.modules():
        if isinstance(module, FeedForward) and type(module.net[0]) is GEGLU:
            module.net[0] = SplitGEGLU(module.net[0])
        if isinstance(module, Attention) and _is_plain(module):
            module.set_processor(attention)


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


class LeanAttention:
    """Attention of a plain layer, without the division by 1 that diffusers ends it with."""

    def __call__(
        self,
        layer: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, N, D), and what is attended to, (B, M, D'), itself if absent -> (B, N, D)."""
        assert attention_mask is None
        text = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            project(rows).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            for project, rows in (
                (layer.to_q, hidden_states),
                (layer.to_k, text),
                (layer.to_v, text),
            )
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = layer.to_out[0](attended.transpose(1, 2).flatten(2))
        return out


def _is_plain(layer: Any) -> bool:
    """Whether it does nothing that `LeanAttention` leaves out."""
    absent = ("spatial_norm", "group_norm", "norm_cross", "norm_q", "norm_k")
    return (
        type(layer.processor) is AttnProcessor2_0
        and not layer.residual_connection
        and layer.rescale_output_factor == 1
        and not any(getattr(layer, name) for name in absent)
    )
