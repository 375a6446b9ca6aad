"""LoRA sets written in place into pristine weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685), section 4.1:
W' = W + alpha / rank * B A, here with a weight for each LoRA and summed over the set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from comicgen.diffusion.unchanged import check_unchanged
from comicgen.errors import CandidateError, InputError
from comicgen.storyboard import Lora, in_order
from comicgen.weights import LoraLayer, ModelFolder, normalised, read_lora

_Home = tuple[str, str]


class LoraWeights:
    """The weights of a model's modules as a pure function of the LoRA set.

    Every change goes into the storage that the parameters have, so that what was captured or
    viewed before sees it. A pristine copy is kept of each weight that a set has ever touched.
    """

    def __init__(self, modules: Mapping[str, nn.Module], model: ModelFolder) -> None:
        """`modules` are "unet", "text_encoder" and "text_encoder_2" of `model`, on their device."""
        self._model = model
        self._weights: dict[_Home, Tensor] = {
            (component, normalised(name)): parameter
            for component, module in modules.items()
            for name, parameter in module.named_parameters()
        }
        self._pristine: dict[_Home, Tensor] = {}
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
        self._restore()
        try:
            self._apply(wanted, {each.lora.digest: each for each in read})
        except BaseException:
            self._restore()
            raise

    @torch.no_grad()
    def _apply(self, loras: tuple[Lora, ...], read: Mapping[str, "LoraChanges"]) -> None:
        changes: dict[_Home, list[_Change]] = {}
        for lora in loras:
            file = read.get(lora.digest) or read_changes(lora, self._model)
            for layer in file.layers:
                change = _Change(lora, layer, file.tensors)
                changes.setdefault(change.home, []).append(change)
        for home, parts in changes.items():
            self._add(home, parts)
        # Asked once, because the host waits for the answer.
        if not get_total_norm([self._weights[home] for home in changes], inf).isfinite():
            self._blame(changes)
        self._active = loras
        every = (change for parts in changes.values() for change in parts)
        on_text = {change.lora for change in every if change.home[0] != "unet"}
        self._text_key = " ".join(f"{lora.digest}*{lora.weight}" for lora in in_order(on_text))

    @torch.no_grad()
    def _restore(self) -> None:
        self._active = None
        for home, pristine in self._pristine.items():
            self._weights[home].copy_(pristine)
        self._active = ()
        self._text_key = ""

    def _add(self, home: _Home, changes: Sequence["_Change"]) -> None:
        weight = self._weights[home]
        if home not in self._pristine:
            self._pristine[home] = weight.detach().clone()
        weight.copy_(self._sum(home, changes))

    def _sum(self, home: _Home, changes: Sequence["_Change"]) -> Tensor:
        """The weight in float32."""
        pristine = self._pristine[home]
        first, *others = (change.delta(pristine.device) for change in changes)
        for other in others:
            first += other
        return first.reshape(pristine.shape).add_(pristine)

    def _blame(self, changes: Mapping[_Home, Sequence["_Change"]]) -> NoReturn:
        """Say what is not finite: numbers of a file, or else the sum."""
        for home, parts in changes.items():
            for change in parts:
                change.check(self._pristine[home].device)
            if not self._sum(home, parts).to(self._pristine[home].dtype).isfinite().all():
                raise CandidateError(
                    f"{' and '.join(map(str, parts))} carries a weight of the {home[0]} beyond "
                    f"{self._pristine[home].dtype}; use a smaller weight or another file"
                )
        raise AssertionError("what was not finite is")


@dataclass(frozen=True, slots=True)
class _Change:
    """What one LoRA adds to one parameter; `tensors` are those of its file, by key."""

    lora: Lora
    layer: LoraLayer
    tensors: Mapping[str, Tensor]

    @property
    def home(self) -> _Home:
        return self.layer.component, self.layer.parameter

    def __str__(self) -> str:
        return f"{self.lora.file}: {self.layer.up}"

    def delta(self, device: torch.device) -> Tensor:
        """weight * scale * up @ down: (out, in * kernel), float32, on `device`."""
        scale = self.layer.scale
        if self.layer.alpha is not None:
            scale = self._load(self.layer.alpha, torch.device("cpu")).item() / self.layer.rank
        up = self._load(self.layer.up, device).flatten(1)
        down = self._load(self.layer.down, device).flatten(1)
        return (up @ down).mul_(self.lora.weight * scale)

    def check(self, device: torch.device) -> None:
        """Whether its numbers are.

        Raises:
            CandidateError: they are not all finite.
        """
        for key in (self.layer.up, self.layer.down, self.layer.alpha):
            if key is not None and not self._load(key, device).isfinite().all():
                raise CandidateError(
                    f"{self.lora.file}: {key} holds numbers that are not finite; download the "
                    "file again or use another"
                )

    def _load(self, key: str, device: torch.device) -> Tensor:
        return self.tensors[key].to(device).float()


@dataclass(frozen=True, slots=True)
class LoraChanges:
    """What a LoRA's file changes, and its tensors by key, on the CPU."""

    lora: Lora
    layers: Sequence[LoraLayer]
    tensors: Mapping[str, Tensor]


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
    return LoraChanges(lora, layers, tensors)


def _identities(loras: Sequence[Lora]) -> list[tuple[str, float]]:
    return [(lora.digest, lora.weight) for lora in loras]
