"""The journal of an output folder: one JSON line an event, appended and never rewritten.

A line counts once its newline is on the disk. Whatever follows the last newline, and a last
line that does not parse, is what a power loss leaves: it is overlooked, and cut off before the
next line is written. Damage before it is nothing that a crash can do, and is an error.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from comicgen.errors import OutputError
from comicgen.outputs.disk import append, replace
from comicgen.outputs.entries import JOURNAL_FORMAT, Entry, Head, decode, encode

JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a journal says. `length` counts its bytes up to the end of the last whole line."""

    head: Head
    entries: tuple[Entry, ...]
    length: int


def read(path: Path) -> Reading:
    """Read a journal.

    Raises:
        OutputError: a line before the last is damaged, or another version wrote the journal.
        OSError: the file cannot be read.
    """
    *lines, torn = path.read_bytes().split(b"\n")
    if len(lines) > 1 and not torn and not _parses(lines[-1]):
        lines.pop()
    head = _head(path, lines[0] if lines else b"")
    entries = tuple(_entry(path, number, line) for number, line in enumerate(lines[1:], start=2))
    return Reading(head, entries, sum(len(line) + 1 for line in lines))


def _head(path: Path, line: bytes) -> Head:
    try:
        written = json.loads(line)["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, 1) from error
    if written != JOURNAL_FORMAT:
        raise OutputError(
            f"{path} has format {written}, and this comicgen reads format {JOURNAL_FORMAT}; "
            "use the comicgen that wrote it, or give --output another folder"
        )
    head = _entry(path, 1, line)
    if not isinstance(head, Head):
        raise _damaged(path, 1)
    return head


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        return decode(line)
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, number, line) from error


def _damaged(path: Path, number: int, line: bytes = b"") -> OutputError:
    """With a cure for what the line told, as far as that can still be seen."""
    if number == 1:
        cure = "move the folder away: all is drawn again"
    elif b'"settled"' in line:
        cure = "delete the line and draw all with --redo: the numerics of a size are chosen again"
    elif b'"asked"' in line:
        cure = "delete the line and ask for it again"
    else:
        cure = "delete the line: what it told of is drawn again"
    return OutputError(f"{path}:{number}: the line is damaged; restore the file, or {cure}")


def _parses(line: bytes) -> bool:
    try:
        decode(line)
    except (ValueError, TypeError, KeyError):
        return False
    return True


def create(path: Path, head: Head) -> None:
    """Begin a journal; there is none without its head."""
    replace(path, encode(head))


class Journal:
    """A journal open for writing, by one writer at a time."""

    def __init__(self, path: Path, length: int) -> None:
        """Go on after the first `length` bytes; what follows them is cut off."""
        self._length = length
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._cut()

    def append(self, entry: Entry) -> None:
        """Add a line and wait until the disk has it; if that fails, no part of it stays."""
        line = encode(entry)
        try:
            append(self._descriptor, line)
            self._length += len(line)
        except BaseException:
            self._cut()
            raise

    def close(self) -> None:
        """Close the file; every line is on the disk already."""
        os.close(self._descriptor)

    def _cut(self) -> None:
        if os.fstat(self._descriptor).st_size != self._length:
            os.ftruncate(self._descriptor, self._length)
            os.fsync(self._descriptor)
