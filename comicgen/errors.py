"""What can go wrong, and with which exit code it ends a command.

ComicgenError
├── InputError            2   the author's storyboard, files or command are wrong
│   ├── StoryboardError       one or more complaints about a storyboard and the files it names
│   └── CommandError          an option names something that is not there
├── OutputError           2   the output folder is busy, foreign, damaged or cannot be written
├── MachineError          4   the machine stopped the run; what is finished stays
│   ├── DiskFull
│   ├── DeviceLost
│   └── NumericsError         the device cannot draw with the numerics that it was asked for
└── CandidateError        -   one candidate cannot be drawn; the engine turns it into `Failed`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands in a text file; line and column count from 1."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Complaint:
    """One mistake in one sentence: where, what, and how to cure it."""

    place: Place | None
    what: str
    cure: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.what}" + (f"; {self.cure}" if self.cure else "")

    def to_json(self) -> dict[str, str | int | None]:
        """As plain JSON, its place apart, for an editor to jump to."""
        told: dict[str, str | int | None] = {"what": self.what, "cure": self.cure or None}
        if self.place is None:
            return told
        line, column = self.place.line, self.place.column
        return {"file": str(self.place.file), "line": line, "column": column, **told}


class ComicgenError(Exception):
    """Root of every error that comicgen raises on purpose."""

    exit_code = 2


class InputError(ComicgenError):
    """The author's text, files or command are wrong; nothing was written."""


class StoryboardError(InputError):
    """Every complaint about a storyboard, in the order of their places."""

    def __init__(self, complaints: Sequence[Complaint]) -> None:
        assert complaints
        self.complaints = tuple(complaints)
        super().__init__("\n".join(str(complaint) for complaint in complaints))


class CommandError(InputError):
    """An option of the command names something that is not there."""


class OutputError(ComicgenError):
    """The output folder is busy, belongs to another storyboard, is damaged or cannot be written."""


class MachineError(ComicgenError):
    """The machine stopped the run; everything finished stays."""

    exit_code = 4


class DiskFull(MachineError):  # noqa: N818 - named after what the user sees
    """No space is left for the next file."""


class DeviceLost(MachineError):  # noqa: N818 - named after what the user sees
    """The device does not answer any more."""


class NumericsError(MachineError):
    """The device cannot draw with the numerics that it was asked for; nothing was drawn yet."""


class CandidateError(ComicgenError):
    """One candidate cannot be drawn, for the reason given; others can."""

    exit_code = 3


def first_line(error: Exception) -> str:
    """What the error of a library says before its details; its name where it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__
