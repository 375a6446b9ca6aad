"""The seam between planning and drawing.

An `Engine` draws one batch at a time and yields what became of each candidate. It raises only
when the device is lost; everything else that can go wrong is a `Failed` with its reason.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL.Image import Image

from comicgen.plan import Batch, Candidate


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


Event = Drawn | Failed | Note | GraphLabel


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How an engine uses CUDA graphs: without them it calls the same functions.

    `precapture` is how many graphs are captured before anything is drawn.
    `debug` compares every replay with the function that was captured.
    """

    enabled: bool = True
    precapture: int = 0
    debug: bool = False


class Engine(Protocol):
    """Draws batches. `upcoming` holds those after this one, and is empty at the last."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield a `Drawn` or a `Failed` for each candidate of the batch, and other events.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        ...
