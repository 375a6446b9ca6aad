"""The factors of LoRAs: laid out to be sent to a device at once, and multiplied for many layers.

A kernel for each of the several hundred layers of a UNet keeps a GPU waiting for its launch, and
so does a copy for each tensor. Layers of one kind therefore lie side by side.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod

import torch
from torch import Tensor

from comicgen.weights import LoraLayer

Home = tuple[str, str]
"""A component and the normalised name of one of its parameters."""

Kind = tuple[int, int, int, float]
"""(out, rank, in * kernel, scale): layers of one kind can be multiplied by one call."""

Place = tuple[Tensor, int]
"""A flat tensor, and where in it the numbers of another one begin."""

Product = tuple[Tensor, Tensor, float]
"""up (n, out, rank) and down (n, rank, in * kernel) in float32, and by what they are multiplied."""

_KEPT = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Factors:
    """One layer of a LoRA: scale * up @ down.

    In the numbers of its file up (out, rank) begins at `up`, down (rank, in * kernel) at `down`.
    """

    layer: LoraLayer
    home: Home
    kind: Kind
    up: int
    down: int

    def odd(self, numbers: Tensor) -> str | None:
        """The key of the first tensor that is not finite."""
        out, rank, into, scale = self.kind
        if not numbers[self.up : self.up + out * rank].isfinite().all():
            return self.layer.up
        if not numbers[self.down : self.down + rank * into].isfinite().all():
            return self.layer.down
        return None if isfinite(scale) else self.layer.alpha


def arrange(
    layers: Iterable[LoraLayer], tensors: Mapping[str, Tensor]
) -> tuple[Sequence[Factors], Tensor]:
    """Where the factors of layers lie in one flat tensor, and that tensor.

    Of each kind all ups follow each other, then all downs. They keep their dtype where all have
    the same of at most 32 bits, and become float32 otherwise.
    """
    kinds: dict[Kind, list[LoraLayer]] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer, tensors), []).append(layer)
    factors: list[Factors] = []
    parts: list[Tensor] = []
    at = 0
    for kind, alike in kinds.items():
        out, rank, into, _ = kind
        ups = range(at, at + len(alike) * out * rank, out * rank)
        downs = range(ups.stop, ups.stop + len(alike) * rank * into, rank * into)
        at = downs.stop
        for layer, up, down in zip(alike, ups, downs, strict=True):
            factors.append(Factors(layer, layer.home, kind, up, down))
        parts += [tensors[layer.up] for layer in alike] + [tensors[layer.down] for layer in alike]
    return factors, _flat(parts)


def _kind(layer: LoraLayer, tensors: Mapping[str, Tensor]) -> Kind:
    scale = layer.scale
    if layer.alpha is not None:
        scale = tensors[layer.alpha].float().item() / layer.rank
    return len(tensors[layer.up]), layer.rank, tensors[layer.down][0].numel(), scale


def _flat(parts: Sequence[Tensor]) -> Tensor:
    first, *others = {part.dtype for part in parts}
    dtype = torch.float32 if others or first not in _KEPT else first
    numbers = _room(sum(part.numel() for part in parts), dtype)
    return torch.cat([part.flatten().to(dtype) for part in parts], out=numbers)


def _room(count: int, dtype: torch.dtype) -> Tensor:
    """Where this process uses a GPU and there is enough, memory that is copied from unawaited."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):
            return torch.empty(count, dtype=dtype, pin_memory=True)
    return torch.empty(count, dtype=dtype)


def stacked(places: Sequence[Place], shape: tuple[int, ...]) -> Tensor:
    """(n, *shape) of what lies at n places: a view where they follow each other, or a copy."""
    size = prod(shape)
    whole, start = places[0]
    expected = range(start, start + len(places) * size, size)
    if all(flat is whole and at == here for (flat, at), here in zip(places, expected, strict=True)):
        return whole[start : expected.stop].view(-1, *shape)
    return torch.stack([flat[at : at + size].view(shape) for flat, at in places])


def summed_alone(products: Sequence[Product]) -> Tensor:
    """The sum (1, out, in * kernel) of the products of one layer.

    Pictures that are drawn on a CPU are compared bit by bit, and depend on these operations.
    """
    first, *others = ((up[0] @ down[0]).mul_(factor) for up, down, factor in products)
    for other in others:
        first += other
    return first[None]


def summed_at_once(products: Sequence[Product]) -> Tensor:
    """The same (n, out, in * kernel) for n layers, by one kernel a product."""
    ups, downs, _ = products[0]
    total = ups.new_empty(len(ups), ups.shape[1], downs.shape[2])
    for number, (up, down, factor) in enumerate(products):
        total.baddbmm_(up, down, beta=min(number, 1), alpha=factor)  # beta 0: empty, not read
    return total
