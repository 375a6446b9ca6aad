"""The seam between planning and drawing.

An `Engine` draws one batch at a time and yields what became of each candidate. It raises only
when the device is lost; everything else that can go wrong is a `Failed` with its reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from PIL.Image import Image

from comicgen.plan import Batch, Bucket, Candidate, GraphKey
from comicgen.storyboard import Model


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture. `seconds` is what its lane took, `notes` what had to be done for it."""

    candidate: Candidate
    image: Image
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that could not be drawn, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the run that the author should read in the manifest."""

    text: str


@dataclass(frozen=True, slots=True)
class GraphLabel:
    """A captured CUDA graph, told after its capture and after each batch that replayed it.

    `number` counts the captures of a run from 1. `seconds` is what capture and check took,
    `before` and `after` the bytes of GPU memory that torch held around them, `replays` how
    often it was replayed until now, `attention` the kernels of attention in it.
    """

    number: int
    bucket: str
    seconds: float
    before: int
    after: int
    replays: int
    attention: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bucket costs on this machine, told once it is known; seconds, None where it is not.

    `eager` is one step of the whole bucket called kernel by kernel, `replayed` the same from its
    graph, `first_use` its capture and check, `decode` the way from latents to one picture of its
    size. `bytes` of GPU memory is what that step or decode takes beyond the weights.
    """

    numerics: str
    bucket: Bucket
    eager: float | None = None
    replayed: float | None = None
    first_use: float | None = None
    decode: float | None = None
    bytes: int = 0


Event = Drawn | Failed | Note | GraphLabel | Measured


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How an engine uses CUDA graphs: without them it calls the same functions.

    `precapture` is how many graphs are captured before anything is drawn.
    `without` are graphs that are not captured, because they do not pay.
    `debug` compares every replay with the function that was captured.
    """

    enabled: bool = True
    precapture: int = 0
    debug: bool = False
    without: frozenset[GraphKey] = frozenset()


class Engine(Protocol):
    """Draws batches. `upcoming` holds those after this one, and is empty at the last."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield a `Drawn` or a `Failed` for each candidate of the batch, and other events.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        ...


@runtime_checkable
class Measuring(Protocol):
    """An engine that can tell what buckets cost before it draws in them."""

    def measure(self, keys: Mapping[GraphKey, Model | None]) -> Iterator[Measured | Note]:
        """Yield what was measured of each of these graphs, with its ControlNet, or why not.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        ...
