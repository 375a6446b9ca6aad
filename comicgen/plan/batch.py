"""What is drawn together: candidates, buckets, batches and the graphs that they replay."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from comicgen.numerics import Numerics
from comicgen.sizes import Size
from comicgen.storyboard import Lora, Model, Panel, in_window


@dataclass(frozen=True, slots=True)
class Candidate:
    """One picture to be drawn.

    `fields` is everything that the author asked for and that can change a pixel, as plain JSON;
    `fingerprint` is its SHA-256.
    """

    panel: Panel
    number: int
    seed: int
    fields: Mapping[str, Any] = field(compare=False, repr=False)
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """As in p03-c02: panel id and number from 1."""
        return f"{self.panel.id}-c{self.number:02d}"

    @property
    def file(self) -> str:
        """Path of its picture inside the output folder."""
        return f"{self.panel.id}/{self.name}.png"


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """What fixes the shapes of a batch. `batch` counts pictures: guidance doubles it inside."""

    batch: int
    size: Size
    chunks: int
    controls: int
    guided: bool

    def __str__(self) -> str:
        return self.named(None)

    def named(self, controlnet: str | None) -> str:
        """The bucket in words, with the name of its ControlNet if that is given."""
        parts = [f"{self.batch} x {self.size}"]
        parts += [f"{self.chunks} chunks"] * (self.chunks > 1)
        parts += [f"control {controlnet}" if controlnet else "control"] * (self.controls > 0)
        parts += ["unguided"] * (not self.guided)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What one captured graph serves: a bucket, and the digest of the ControlNet inside it.

    `written` is that ControlNet as the author wrote it, for messages.
    """

    bucket: Bucket
    controlnet: str | None = None
    written: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.bucket.named(self.written)


@dataclass(frozen=True, slots=True)
class ControlWindow:
    """The ControlNet that a batch shares, and the part of the steps in which it works."""

    model: Model
    start: float
    end: float

    def is_open(self, step: int, steps: int) -> bool:
        """Whether it works at a step counted from 0."""
        return in_window(self.start, self.end, step, steps)


@dataclass(frozen=True, slots=True)
class Batch:
    """Candidates that go through the same steps side by side.

    A lane holds a candidate or, where it is padded, None; `bucket.batch` is the number of lanes.
    """

    bucket: Bucket
    loras: tuple[Lora, ...]
    sampler: str
    steps: int
    control: ControlWindow | None
    lanes: tuple[Candidate | None, ...]
    numerics: Numerics = "plain"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates to be drawn, in the order of their lanes."""
        return tuple(lane for lane in self.lanes if lane is not None)

    @property
    def padded(self) -> int:
        """How many lanes hold no candidate."""
        return self.lanes.count(None)

    @property
    def calls(self) -> dict[GraphKey, int]:
        """How many of its steps each of its graphs serves: with its ControlNet, then without."""
        plain = GraphKey(replace(self.bucket, controls=0))
        if self.control is None:
            return {plain: self.steps}
        model = self.control.model
        inside = GraphKey(self.bucket, model.digest, model.written)
        opened = sum(self.control.is_open(step, self.steps) for step in range(self.steps))
        calls = {inside: opened, plain: self.steps - opened}
        return {key: steps for key, steps in calls.items() if steps}

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """The graphs that its steps replay: with its ControlNet, then, if needed, without."""
        return tuple(self.calls)
