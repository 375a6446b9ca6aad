"""The typed storyboard: what the author asked for, with every file found and digested."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from comicgen.errors import Place
from comicgen.sizes import Size


@dataclass(frozen=True, slots=True)
class Model:
    """A model or ControlNet in diffusers' folder layout.

    `written` is the author's word for it, `digest` the SHA-256 over the contents of its files.
    """

    written: str
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Lora:
    """One LoRA file at one weight."""

    written: str
    file: Path
    digest: str
    weight: float


def in_order(loras: Iterable[Lora]) -> tuple[Lora, ...]:
    """LoRAs in the order in which they are added, which is not the author's to choose."""
    return tuple(sorted(loras, key=lambda lora: (lora.digest, lora.weight)))


@dataclass(frozen=True, slots=True)
class Control:
    """A ControlNet, its ready control image, and the part of the steps in which it works.

    `in_window` tells at which steps it works.
    """

    model: Model
    image: Path
    image_digest: str
    weight: float
    start: float
    end: float


def in_window(start: float, end: float, step: int, steps: int) -> bool:
    """Whether a ControlNet works at a step counted from 0; diffusers' rule."""
    return step / steps >= start and (step + 1) / steps <= end


@dataclass(frozen=True, slots=True)
class Panel:
    """One frame of the story, with defaults, characters and style already written in.

    `negative` None means the author asked for none; "" means an empty one. `seed` None means
    that the base seed comes from the storyboard's seed and the panel's id.
    """

    id: str
    prompt: str
    negative: str | None
    size: Size
    steps: int
    sampler: str
    guidance: float
    candidates: int
    seed: int | None
    loras: tuple[Lora, ...]
    control: Control | None
    title: str | None
    caption: str | None
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Storyboard:
    """A whole storyboard. `warnings` name what will not work although drawing can begin."""

    path: Path
    title: str | None
    model: Model
    seed: int
    precision: str | None
    panels: tuple[Panel, ...]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file name without its ending; it names the output folder."""
        return self.path.stem
