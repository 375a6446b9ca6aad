"""Attention as diffusers' modules do it, in fewer and larger kernels.

Each module takes over the children of the one that it stands for under their names, so that
weights keep their names too. Weights that are read together lie side by side in one storage, of
which the parameters are views: what is written into one is seen by both.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

from comicgen.diffusion.fused_modules import GroupNorm
from comicgen.diffusion.fused_operations import geglu, layer_norm


class _SideBySide(nn.Module):
    """Parameters that are read together: one tensor holds all of them from now on.

    It cannot be copied, cast or moved: they would part from those of the layers.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.joined = torch.cat([parameter.data for parameter in parameters])
        first = 0
        for parameter in parameters:
            parameter.data = self.joined[first : first + len(parameter)]
            first += len(parameter)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("a fused network cannot be copied; copy it before")

    def _apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a fused network cannot be cast or moved; do so before")


class Linear(_SideBySide):
    """Several layers that read the same, by one product."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__([layer.weight for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., sum of their widths)."""
        return F.linear(x, self.joined)


class Biases(_SideBySide):
    """Biases of layers of one width, which are added one after the other."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__([layer.bias for layer in layers])
        self._width = layers[0].out_features

    def forward(self) -> tuple[Tensor, Tensor]:
        """All of them (D,), and before each minus those that are yet to come, itself too (n, D).

        Both in float32, or what is wider.
        """
        each = self.joined.view(-1, self._width)
        done = each.cumsum(0, dtype=torch.promote_types(each.dtype, torch.float32))
        return done[-1], done - each - done[-1]


class TransformerBlock(nn.Module):
    """A block of SDXL's transformers: attention to itself, to the text, and a feed-forward.

    The product at the end of each part adds itself to what the part began with. Its bias is not
    added there: `Transformer` has added all of them before, and each norm takes back those that
    are yet to come.
    """

    @staticmethod
    def stands_for(block: Any) -> bool:
        """Whether it does what the block does."""
        return (
            type(block) is BasicTransformerBlock
            and block.norm_type == "layer_norm"
            and block.pos_embed is None
            and not block.only_cross_attention
            and all(_is_plain_attention(each) for each in (block.attn1, block.attn2))
            and type(block.ff.net[0]) is GEGLU
            and isinstance(block.ff.net[2], nn.Linear)
            and all(layer.bias is not None for layer in _last(block))
            and getattr(block, "fuser", None) is None
            and block._chunk_size is None
        )

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = block.norm1, block.norm2, block.norm3
        self.attn1, self.attn2, self.ff = block.attn1, block.attn2, block.ff
        own = self.attn1
        self._qkv = Linear([own.to_q, own.to_k, own.to_v])
        self.first = 0
        """Where its keys and values begin among those of all blocks."""

    def forward(self, x: Tensor, before: Tensor, text: Tensor) -> None:
        """Add to x (R, N, D), in place, what the block makes of it and `TextKeys` (R, 77, T).

        `before` (3, D) is what the norm of each part adds to x.
        """
        heads, width = self.attn1.heads, self.attn2.inner_dim
        attended, read, fed = _last(self)
        normed = _normed(self.norm1, x, before[0])
        query, key, value = self._qkv(normed).chunk(3, dim=-1)
        _add_product(x, _attend(query, key, value, heads), attended)
        normed = _normed(self.norm2, x, before[1])
        key, value = text[..., self.first : self.first + 2 * width].chunk(2, dim=-1)
        _add_product(x, _attend(self.attn2.to_q(normed), key, value, heads), read)
        normed = _normed(self.norm3, x, before[2])
        _add_product(x, geglu(self.ff.net[0].proj(normed)), fed)


class Transformer(nn.Module):
    """SDXL's spatial transformer."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether it does what the module does."""
        return (
            type(module) is Transformer2DModel
            and module.is_input_continuous
            and module.use_linear_projection
            and module.proj_in.bias is not None
            and all(TransformerBlock.stands_for(block) for block in module.transformer_blocks)
        )

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.norm = GroupNorm(module.norm)
        self.proj_in, self.proj_out = module.proj_in, module.proj_out
        self.transformer_blocks = nn.ModuleList(
            TransformerBlock(block) for block in module.transformer_blocks
        )
        layers = [layer for block in module.transformer_blocks for layer in _last(block)]
        self._biases = Biases(layers)

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, **_: Any
    ) -> tuple[Tensor]:
        """(R, C, H, W) and `TextKeys` (R, 77, T) -> (R, C, H, W)."""
        biases, before = self._biases()
        bias = (self.proj_in.bias + biases).to(hidden_states.dtype)
        x = F.linear(_tokens(self.norm(hidden_states)), self.proj_in.weight, bias)
        for block, own in zip(self.transformer_blocks, before.split(3), strict=True):
            block(x, own, encoder_hidden_states)
        return (_picture(self.proj_out(x), hidden_states) + hidden_states,)


class TextKeys(nn.Module):
    """Keys and values of a text for all attention layers of a network that read it."""

    def __init__(self, blocks: Sequence[TransformerBlock]) -> None:
        super().__init__()
        layers: list[nn.Linear] = []
        first = 0
        for block in blocks:
            block.first = first
            layers += [block.attn2.to_k, block.attn2.to_v]
            first += 2 * block.attn2.inner_dim
        self.width = first
        self._product = Linear(layers)

    def forward(self, hidden: Tensor) -> Tensor:
        """(R, 77, D) -> (R, 77, T)."""
        keys: Tensor = self._product(hidden)
        return keys


class PixelAttention(nn.Module):
    """The attention of a VAE: one head over all pixels."""

    @staticmethod
    def stands_for(layer: Any) -> bool:
        """Whether it does what the layer does."""
        return (
            type(layer) is Attention
            and layer.heads == 1
            and isinstance(layer.group_norm, nn.GroupNorm)
            and layer.spatial_norm is None
            and layer.residual_connection
            and layer.rescale_output_factor == 1
        )

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.group_norm = GroupNorm(layer.group_norm)
        self.to_q, self.to_k, self.to_v = layer.to_q, layer.to_k, layer.to_v
        self.to_out = layer.to_out
        self.gain = 1.0

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        """(R, C, H, W) -> (R, C, H, W)."""
        tokens = _tokens(self.group_norm(hidden_states))
        query, key, value = self.to_q(tokens), self.to_k(tokens), self.to_v(tokens)
        attended = self.to_out[0](_attend(query, key, value, heads=1))
        return torch.add(hidden_states, _picture(attended, hidden_states), alpha=self.gain)


def _last(block: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """The layers at the ends of the parts of a block."""
    return block.attn1.to_out[0], block.attn2.to_out[0], block.ff.net[2]


def _normed(norm: nn.LayerNorm, x: Tensor, before: Tensor) -> Tensor:
    return layer_norm(x, before, norm.weight, norm.bias, norm.eps)


def _add_product(x: Tensor, y: Tensor, layer: nn.Linear) -> None:
    """Add to x (R, N, D), in place, what a layer makes of y (R, N, K), without its bias."""
    x.view(-1, x.shape[-1]).addmm_(y.view(-1, y.shape[-1]), layer.weight.t())


def _is_plain_attention(layer: Any) -> bool:
    biases = (each.bias for each in (layer.to_q, layer.to_k, layer.to_v))
    return (
        type(layer) is Attention
        and all(bias is None for bias in biases)
        and layer.norm_q is None
        and layer.norm_k is None
        and layer.group_norm is None
        and layer.spatial_norm is None
        and not layer.residual_connection
        and layer.rescale_output_factor == 1
        and layer.scale == (layer.inner_dim // layer.heads) ** -0.5
    )


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Attention (arXiv 1706.03762) of (R, N, D) to (R, M, D) -> (R, N, D)."""
    query, key, value = (
        each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in (query, key, value)
    )
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def _tokens(picture: Tensor) -> Tensor:
    """A channels_last picture (R, C, H, W) as (R, H * W, C)."""
    rows, channels = picture.shape[:2]
    return picture.permute(0, 2, 3, 1).view(rows, -1, channels)


def _picture(tokens: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_tokens`, for a picture of this shape."""
    rows, channels, height, width = like.shape
    return tokens.view(rows, height, width, channels).permute(0, 3, 1, 2)
