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


Event = Drawn | Failed | Note


class Engine(Protocol):
    """Draws batches. `upcoming` holds those after this one, and is empty at the last."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield one `Drawn` or `Failed` for each candidate of the batch, and any `Note`s.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        ...
