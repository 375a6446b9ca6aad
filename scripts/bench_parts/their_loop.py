"""The loop over a whole story that a careful user of diffusers writes."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

from bench_parts.theirs import TRIAL_STEPS, Diffusers, call, control_of, words
from bench_parts.timing import timed
from comicgen.plan import Candidate, Memory, every_candidate
from comicgen.storyboard import Lora, Panel, Storyboard

LoraSet = tuple[Lora, ...]
Shot = tuple[Candidate, ...]
"""All candidates of one panel."""


@dataclass(frozen=True)
class Looped:
    """Seconds of a whole story; the rest is reading files and switching LoRAs."""

    seconds: float
    drawing: float
    saving: float

    def __str__(self) -> str:
        return (
            f"{self.seconds:8.3f} s: drawing {self.drawing:.3f}, saving {self.saving:.3f}, "
            f"rest {self.rest:.3f}"
        )

    @property
    def rest(self) -> float:
        return self.seconds - self.drawing - self.saving

    def to_json(self) -> dict[str, float]:
        names = ("seconds", "drawing", "saving", "rest")
        return {name: round(getattr(self, name), 3) for name in names}


@dataclass(frozen=True)
class Trial:
    """What the panels of one LoRA set would take with its LoRAs set, and with them fused."""

    loras: LoraSet
    set_adapters: float
    fuse_lora: float

    @property
    def fuse(self) -> bool:
        return self.fuse_lora < self.set_adapters

    def to_json(self) -> dict[str, Any]:
        return {
            "loras": [f"{lora.file.stem} at {lora.weight:g}" for lora in self.loras],
            "set_adapters": round(self.set_adapters, 3),
            "fuse_lora": round(self.fuse_lora, 3),
            "chosen": "fuse_lora" if self.fuse else "set_adapters",
        }


class Loop:
    """Panels sorted by LoRA set and size, one call for each, every picture saved at once.

    Pictures come as the pipeline gives them, as Pillow's. LoRAs are loaded once as adapters,
    after the panels that need none. Those sets in `fused` are written into the weights, others
    only set.
    """

    def __init__(self, diffusers: Diffusers, fused: Collection[LoraSet], output: Path) -> None:
        self._diffusers = diffusers
        self._fused = fused
        self._output = output
        self._pipes: dict[Path | None, Diffusers] = {}
        self._drawing = self._saving = 0.0

    def run(self, storyboard: Storyboard) -> Looped:
        """Draw a story. The model is loaded before; ControlNet and LoRA files are read here."""
        begun = time.perf_counter()
        pipe = self._diffusers.pipe
        shots = _sorted(storyboard)
        plain = [shot for shot in shots if not _loras(shot)]
        for shot in plain:
            self._save(shot, self._draw(shot))
        with adapters(pipe, storyboard):
            for loras, group in groupby(shots[len(plain) :], key=_loras):
                with worn(pipe, loras, loras in self._fused):
                    for shot in group:
                        self._save(shot, self._draw(shot))
        return Looped(time.perf_counter() - begun, self._drawing, self._saving)

    def _draw(self, shot: Shot) -> list[Image.Image]:
        panel, device = shot[0].panel, self._diffusers.setting.device
        more = {**words(panel), **control_of(panel)}
        pipe = self._beside(panel).pipe
        seconds, pictures = timed(lambda: call(pipe, shot, panel.steps, more), device)
        self._drawing += seconds
        return pictures

    def _beside(self, panel: Panel) -> Diffusers:
        """The pipeline of a panel, whose ControlNet is read when it first occurs."""
        name = panel.control and panel.control.model.folder
        if name not in self._pipes:
            self._pipes[name] = self._diffusers.beside(panel)
        return self._pipes[name]

    def _save(self, shot: Shot, pictures: Sequence[Image.Image]) -> None:
        begun = time.perf_counter()
        for candidate, picture in zip(shot, pictures, strict=True):
            file = self._output / candidate.file
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)
        self._saving += time.perf_counter() - begun


def try_loras(diffusers: Diffusers, storyboard: Storyboard) -> list[Trial]:
    """Each LoRA set of a story in both ways, for as many panels as it has."""
    trials = []
    with adapters(diffusers.pipe, storyboard):
        for loras, group in groupby(_sorted(storyboard), key=_loras):
            if loras:
                shots = tuple(group)
                ways = (_estimate(diffusers, shots, fuse) for fuse in (False, True))
                trials.append(Trial(loras, *ways))
    return trials


@contextmanager
def adapters(pipe: Any, storyboard: Storyboard) -> Iterator[None]:
    """Every LoRA file of a story, each loaded once."""
    files = sorted({lora.file for panel in storyboard.panels for lora in panel.loras})
    for file in files:
        pipe.load_lora_weights(file.parent, weight_name=file.name, adapter_name=file.stem)
    yield
    if files:
        pipe.unload_lora_weights()


@contextmanager
def worn(pipe: Any, loras: LoraSet, fuse: bool) -> Iterator[None]:
    """A LoRA set in effect."""
    names = [lora.file.stem for lora in loras]
    pipe.set_adapters(names, [lora.weight for lora in loras])
    if fuse:
        pipe.fuse_lora(components=["unet"], adapter_names=names)
    yield
    if fuse:
        pipe.unfuse_lora(components=["unet"])


def _estimate(diffusers: Diffusers, shots: Sequence[Shot], fuse: bool) -> float:
    """About the seconds that these shots of one LoRA set take, by calls of few steps."""
    panel, loras = shots[0][0].panel, _loras(shots[0])

    def switch() -> None:
        with worn(diffusers.pipe, loras, fuse):
            pass

    switch()
    switching, _ = timed(switch, diffusers.setting.device)
    with worn(diffusers.pipe, loras, fuse):
        call = diffusers.trial(shots[0], words(panel))
    return switching + call * panel.steps / TRIAL_STEPS * len(shots)


def _sorted(storyboard: Storyboard) -> list[Shot]:
    """By LoRA set, those without first; then by size, and those with control together."""
    shots = groupby(every_candidate(storyboard, Memory()), key=lambda each: each.panel)

    def order(shot: Shot) -> tuple[Any, ...]:
        panel = shot[0].panel
        return [str(lora) for lora in panel.loras], panel.size, panel.control is not None

    return sorted((tuple(shot) for _, shot in shots), key=order)


def _loras(shot: Shot) -> LoraSet:
    return shot[0].panel.loras
