"""LoRA sets written in place into pristine weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685), section 4.1:
W' = W + alpha / rank * B A, here with a weight for each LoRA and summed over the set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

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

    def set(self, loras: Sequence[Lora]) -> None:
        """Make the weights what they are under `loras`, whose order does not matter.

        Sums are made in float32 and rounded once to the dtype of the weights.

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
            self._apply(wanted)
        except BaseException:
            self._restore()
            raise

    @torch.no_grad()
    def _apply(self, loras: tuple[Lora, ...]) -> None:
        changes: dict[_Home, list[_Change]] = {}
        for lora in loras:
            for change in _read(lora, self._model):
                changes.setdefault(change.home, []).append(change)
        fits = [self._add(home, parts) for home, parts in changes.items()]
        if fits and not torch.stack(fits).all():  # waits for the device once, not every time
            self._blame(changes)
        self._active = loras
        parts = (part for each in changes.values() for part in each)
        on_text = {part.lora for part in parts if part.home[0] != "unet"}
        self._text_key = " ".join(f"{lora.digest}*{lora.weight}" for lora in in_order(on_text))

    @torch.no_grad()
    def _restore(self) -> None:
        self._active = None
        for home, pristine in self._pristine.items():
            self._weights[home].copy_(pristine)
        self._active = ()
        self._text_key = ""

    def _add(self, home: _Home, changes: Sequence["_Change"]) -> Tensor:
        """Write the sum into the weight; whether all of it is finite, () bool on its device."""
        weight = self._weights[home]
        if home not in self._pristine:
            self._pristine[home] = weight.detach().clone()
        changed = self._sum(home, changes)
        weight.copy_(changed)
        return changed.isfinite().all()

    def _sum(self, home: _Home, changes: Sequence["_Change"]) -> Tensor:
        pristine = self._pristine[home]
        total = torch.zeros_like(pristine, dtype=torch.float32)
        for change in changes:
            total += change.delta(pristine.device).reshape(pristine.shape)
        return (pristine.float() + total).to(pristine.dtype)

    def _blame(self, changes: Mapping[_Home, Sequence["_Change"]]) -> NoReturn:
        """Say what is not finite: numbers of a file, or else the sum."""
        for home, parts in changes.items():
            for change in parts:
                change.check(self._pristine[home].device)
            if not self._sum(home, parts).isfinite().all():
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
        return self.lora.weight * scale * (up @ down)

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


def _read(lora: Lora, model: ModelFolder) -> Iterator[_Change]:
    """What a file changes. It is read whole: a mapped file that is cut off ends the process."""
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
    for layer in layers:
        yield _Change(lora, layer, tensors)


def _identities(loras: Sequence[Lora]) -> list[tuple[str, float]]:
    return [(lora.digest, lora.weight) for lora in loras]
