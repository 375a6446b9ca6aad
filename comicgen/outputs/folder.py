"""Where the output folder of a storyboard is, whose it is, and what it remembers."""

import os.path
from pathlib import Path
from typing import get_args

from comicgen.errors import OutputError
from comicgen.numerics import Numerics
from comicgen.outputs import journal
from comicgen.outputs.disk import disk_errors
from comicgen.outputs.entries import Head, Settled
from comicgen.outputs.journal import JOURNAL, Reading
from comicgen.outputs.manifest import MANIFEST
from comicgen.outputs.recall import recall
from comicgen.plan import Memory
from comicgen.storyboard import Storyboard


def folder_for(storyboard: Path, output: Path | None = None) -> Path:
    """The output folder: `output` if given, else in `outputs/` beside the storyboard.

    A storyboard in a folder called `storyboards` has `outputs/` beside that folder.

    Raises:
        OutputError: the storyboard has no name that a folder could have.
    """
    if output is not None:
        return Path(os.path.realpath(output))
    if not storyboard.stem.strip("."):
        raise OutputError(f"{storyboard} has no name for an output folder; rename it")
    home = Path(os.path.realpath(storyboard.parent))
    return (home.parent if home.name == "storyboards" else home) / "outputs" / storyboard.stem


def read_memory(folder: Path, storyboard: Storyboard) -> Memory:
    """What the folder remembers of this storyboard; nothing if there is none yet.

    It takes no lock and writes nothing, and may be called while another process draws.

    Raises:
        OutputError: the folder is another storyboard's, or damaged, or cannot be read.
    """
    reading = read_journal(folder, storyboard)
    with disk_errors(folder):
        return recall(folder, reading) if reading else Memory()


def read_journal(folder: Path, storyboard: Storyboard) -> Reading | None:
    """The journal of the folder; None if there is none yet.

    Raises:
        OutputError: the folder is another storyboard's, or damaged, or cannot be read.
    """
    with disk_errors(folder):
        try:
            reading = journal.read(folder / JOURNAL)
        except FileNotFoundError:
            _check_free(folder)
            return None
    _check_owner(folder, reading.head, storyboard)
    settled = (entry for entry in reading.entries if isinstance(entry, Settled))
    named = {reading.head.numerics, *(entry.numerics for entry in settled)}
    if unknown := named.difference(get_args(Numerics)):
        raise OutputError(
            f"{folder} was drawn with {' and '.join(sorted(unknown))} numerics, which this "
            "comicgen does not have; use the comicgen that drew it, or give --output another folder"
        )
    return reading


def path_from(folder: Path, storyboard: Storyboard) -> str:
    """How the head of a journal names its storyboard, so that both can move together."""
    return os.path.relpath(os.path.realpath(storyboard.path), os.path.realpath(folder))


def _check_free(folder: Path) -> None:
    """Only a journal tells that a manifest is ours to replace."""
    if os.path.lexists(folder / MANIFEST):
        raise OutputError(
            f"{folder} has a {MANIFEST} but no {JOURNAL}; restore the journal, move the folder "
            "away, or give --output another folder"
        )


def _check_owner(folder: Path, head: Head, storyboard: Storyboard) -> None:
    """A storyboard that is no longer where the head says has moved, and is taken for this one."""
    owner = folder / head.path
    here = head.path == path_from(folder, storyboard)
    if head.storyboard != storyboard.name or not (here or not os.path.exists(owner)):
        raise OutputError(
            f"{folder} belongs to the storyboard {os.path.realpath(owner)}; "
            f"rename {storyboard.path}, or give --output another folder"
        )
