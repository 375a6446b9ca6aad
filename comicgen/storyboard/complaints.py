"""Gathering everything that is wrong with a storyboard, in words that a terminal can show."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from comicgen.errors import Complaint, InputError, Place, StoryboardError

LONGEST = 60
"""Characters of the author's text that a message repeats."""


class Complaints:
    """Complaints by place; the same one at the same place counts once."""

    def __init__(self) -> None:
        self._all: dict[Complaint, None] = {}
        self._warnings: dict[Complaint, None] = {}

    def add(self, place: Place, what: str, cure: str = "") -> None:
        """Note one mistake."""
        self._all[Complaint(place, what, cure)] = None

    def warn(self, place: Place, what: str, cure: str = "") -> None:
        """Note what will not work although drawing can begin."""
        self._warnings[Complaint(place, what, cure)] = None

    @contextmanager
    def at(self, place: Place, who: str = "") -> Iterator[None]:
        """Turn an InputError or OSError raised inside into a complaint at `place`, of `who`."""
        try:
            yield
        except InputError as error:
            self.add(place, f"{who}{error}")
        except OSError as error:
            self.add(
                place,
                f"{who}{error.filename!r} cannot be read: {error.strerror}",
                "mend its permissions",
            )

    def warnings(self) -> tuple[str, ...]:
        """All warnings by place; files by name alone, so that they do not depend on the folder."""
        return tuple(
            str(replace(one, place=_named(one.place))) for one in _by_place(self._warnings)
        )

    def raise_any(self) -> None:
        """Raise StoryboardError if there is a complaint."""
        if self._all:
            raise StoryboardError(_by_place(self._all))


def _by_place(complaints: Iterable[Complaint]) -> list[Complaint]:
    return sorted(complaints, key=lambda complaint: (complaint.place, complaint.what))


def _named(place: Place | None) -> Place | None:
    return place and replace(place, file=Path(place.file.name))


def quoted(text: object) -> str:
    """The author's text in quotes, shortened, with control characters escaped."""
    words = str(text)
    return repr(words if len(words) <= LONGEST else words[: LONGEST - 3] + "...")


def nearest(word: str, known: Iterable[str]) -> str:
    """A question that names the known word most like `word`, or the words that are known."""
    known = list(known)
    like = difflib.get_close_matches(word[:LONGEST].casefold(), known, n=1)
    if like:
        return f"did you mean {quoted(like[0])}?"
    return f"known are {', '.join(known)}" if known else ""
