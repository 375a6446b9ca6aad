"""LoRA sets written in place over pristine weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685), section 4.1:
W' = W + alpha / rank * B A, here with a weight for each LoRA and summed over the set.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from comicgen.diffusion.factors import (
    Factors,
    Home,
    Kind,
    Place,
    Product,
    arrange,
    stacked,
    summed_alone,
    summed_at_once,
)
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.errors import CandidateError, InputError
from comicgen.storyboard import Lora, in_order
from comicgen.weights import ModelFolder, normalised, read_lora

_AT_ONCE = {"cuda": 2**28}
"""Bytes of float32 sums that are made by one call, by device; on others a layer's are."""


class LoraWeights:
    """The weights of a model's modules as a pure function of the LoRA set.

    Every change goes into the storage that the parameters have, so that what was captured or
    viewed before sees it. A pristine copy is kept of each weight that a set has ever touched.
    """

    def __init__(self, modules: Mapping[str, nn.Module], model: ModelFolder) -> None:
        """`modules` are "unet", "text_encoder" and "text_encoder_2" of `model`, on their device."""
        self._model = model
        self._weights: dict[Home, Tensor] = {
            (component, normalised(name)): parameter
            for component, module in modules.items()
            for name, parameter in module.named_parameters()
        }
        self._device = next(iter(self._weights.values())).device
        self._at_once = _AT_ONCE.get(self._device.type, 0)
        self._pristine: dict[Home, Place] = {}
        self._active: tuple[Lora, ...] | None = ()  # None while it is not known
        self._text_key = ""

    @property
    def active(self) -> tuple[Lora, ...]:
        """The set that the weights hold now, in canonical order."""
        return self._active or ()

    @property
    def text_key(self) -> str:
        """Names the part of the set that changes the text encoders."""
        return self._text_key

    @torch.no_grad()
    def set(self, loras: Sequence[Lora], read: Sequence["LoraChanges"] = ()) -> None:
        """Make the weights what they are under `loras`, whose order does not matter.

        Sums are made in float32 and rounded once to the dtype of the weights. Files that are not
        in `read` are read now.

        Raises:
            CandidateError: a file cannot be read, has changed meanwhile or does not fit, holds a
                number that is not finite, or carries a weight beyond its dtype; the weights are
                pristine then.
        """
        wanted = in_order(loras)
        if self._active is not None and _identities(wanted) == _identities(self._active):
            return
        self._active = None
        try:
            self._apply(wanted, {each.lora.digest: each for each in read})
        except BaseException:
            self._restore(self._pristine)
            self._active, self._text_key = (), ""
            raise

    def _apply(self, loras: tuple[Lora, ...], read: Mapping[str, "LoraChanges"]) -> None:
        layers: dict[Home, _Layer] = {}
        for lora in loras:
            file = read.get(lora.digest) or read_changes(lora, self._model)
            numbers = file.numbers.to(self._device, non_blocking=True)
            for factors in file.factors:
                layers.setdefault(factors.home, []).append(_Change(lora, factors, numbers))
        largest = [self._write(group) for group in self._groups(layers)]
        self._restore(self._pristine.keys() - layers.keys())
        # Asked once, because the host waits for the answer.
        if not get_total_norm(largest, inf).isfinite():
            self._blame(self._groups(layers))
        self._active = loras
        every = (change for layer in layers.values() for change in layer)
        on_text = {change.lora for change in every if change.home[0] != "unet"}
        self._text_key = " ".join(f"{lora.digest}*{lora.weight}" for lora in in_order(on_text))

    def _restore(self, homes: Iterable[Home]) -> None:
        pristine = {home: self._pristine[home] for home in homes}
        sizes = (self._weights[home].numel() for home in pristine)
        flats = zip(pristine.values(), sizes, strict=True)
        self._copy(list(pristine), [flat[at : at + size] for (flat, at), size in flats])

    def _groups(self, layers: Mapping[Home, "_Layer"]) -> Iterator[Sequence["_Layer"]]:
        """Layers that the same LoRAs change by factors of the same kinds, a call's at a time.

        Which ones go together depends on the set alone, and so do the kernels that are chosen.
        """
        alike: dict[tuple[tuple[int, Kind], ...], list[_Layer]] = {}
        for layer in layers.values():
            key = tuple((id(change.numbers), change.factors.kind) for change in layer)
            alike.setdefault(key, []).append(layer)
        for same in alike.values():
            out, _, into, _ = same[0][0].factors.kind
            most = max(1, self._at_once // (4 * out * into))
            for start in range(0, len(same), most):
                yield same[start : start + most]

    def _write(self, group: Sequence["_Layer"]) -> Tensor:
        """The largest magnitude of what the group's weights hold then."""
        sums = self._sums(group)
        self._copy([layer[0].home for layer in group], sums.unbind())
        largest: Tensor = torch.linalg.vector_norm(sums, inf)
        return largest

    def _copy(self, homes: Sequence[Home], values: Sequence[Tensor]) -> None:
        weights = [self._weights[home] for home in homes]
        shaped = [value.view(own.shape) for own, value in zip(weights, values, strict=True)]
        if weights:
            torch._foreach_copy_(weights, shaped)

    def _sums(self, group: Sequence["_Layer"]) -> Tensor:
        """(n, out, in * kernel), rounded to the dtype of the weights."""
        products = [_product(changes) for changes in zip(*group, strict=True)]
        total = summed_at_once(products) if self._at_once else summed_alone(products)
        pristine = self._kept([layer[0].home for layer in group])
        return torch.add(total, pristine, out=torch.empty_like(pristine))

    def _kept(self, homes: Sequence[Home]) -> Tensor:
        """Pristine weights (n, out, in * kernel) of one shape; those that are new are copied."""
        new = [home for home in homes if home not in self._pristine]
        if new:
            copies = torch.stack([self._weights[home].flatten(1) for home in new])
            flat, size = copies.flatten(), copies[0].numel()
            self._pristine |= {home: (flat, i * size) for i, home in enumerate(new)}
        weight = self._weights[homes[0]]
        shape = len(weight), weight.numel() // len(weight)
        return stacked([self._pristine[home] for home in homes], shape)

    def _blame(self, groups: Iterable[Sequence["_Layer"]]) -> NoReturn:
        """Say what is not finite: numbers of a file, or else the sum."""
        for group in groups:
            for change in chain.from_iterable(group):
                change.check()
            for layer, carried in zip(group, self._sums(group), strict=True):
                if not carried.isfinite().all():
                    raise CandidateError(
                        f"{' and '.join(map(str, layer))} carries a weight of the "
                        f"{layer[0].home[0]} beyond {carried.dtype}; use a smaller weight or "
                        "another file"
                    )
        raise AssertionError("what was not finite is")


@dataclass(frozen=True, slots=True)
class _Change:
    """What one LoRA adds to one parameter; `numbers` are those of its file, on the device."""

    lora: Lora
    factors: Factors
    numbers: Tensor

    @property
    def home(self) -> Home:
        return self.factors.home

    def __str__(self) -> str:
        return f"{self.lora.file}: {self.factors.layer.up}"

    def check(self) -> None:
        """Whether its numbers are.

        Raises:
            CandidateError: they are not all finite.
        """
        if key := self.factors.odd(self.numbers):
            raise CandidateError(
                f"{self.lora.file}: {key} holds numbers that are not finite; download the "
                "file again or use another"
            )


_Layer = list[_Change]
"""What the LoRAs of a set add to one parameter, in canonical order."""


def _product(changes: Sequence[_Change]) -> Product:
    """What one LoRA adds to layers to which it adds the same kind."""
    [out, rank, into, scale], weight = changes[0].factors.kind, changes[0].lora.weight
    ups = stacked([(each.numbers, each.factors.up) for each in changes], (out, rank))
    downs = stacked([(each.numbers, each.factors.down) for each in changes], (rank, into))
    return ups.float(), downs.float(), weight * scale


@dataclass(frozen=True, slots=True)
class LoraChanges:
    """What a LoRA's file changes, and where in its numbers, which are on the CPU."""

    lora: Lora
    factors: Sequence[Factors]
    numbers: Tensor


def read_changes(lora: Lora, model: ModelFolder) -> LoraChanges:
    """Read a LoRA's file for a model, whole: a mapped file that is cut off ends the process.

    Raises:
        CandidateError: it cannot be read, has changed meanwhile or does not fit.
    """
    try:
        layers = read_lora(lora.file, model).layers
        tensors = load(lora.file.read_bytes())
    except InputError as error:
        check_unchanged(lora.file, lora.digest)
        raise CandidateError(str(error)) from error
    except (SafetensorError, OSError) as error:
        check_unchanged(lora.file, lora.digest)
        raise CandidateError(f"{lora.file}: cannot be read ({error}); download it again") from error
    check_unchanged(lora.file, lora.digest)
    return LoraChanges(lora, *arrange(layers, tensors))


def _identities(loras: Sequence[Lora]) -> list[tuple[str, float]]:
    return [(lora.digest, lora.weight) for lora in loras]
