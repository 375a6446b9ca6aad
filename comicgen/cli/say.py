"""Speaking: sentences to people on stderr, JSON lines to programs on stdout."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from comicgen.errors import MachineError


class People(Console):
    """Whoever reads stderr. That nobody does is no reason to stop drawing."""

    def on_broken_pipe(self) -> None:
        """Say nothing more, instead of ending the process."""
        self.quiet = True


_line = Lock()

people = People(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text without control characters, so that nothing an author wrote steers a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def say(text: str, style: str = "") -> None:
    """Print a sentence for people."""
    show(Text(printable(text), style=style))


def show(what: RenderableType) -> None:
    """Print anything for people."""
    with suppress(OSError):  # a full disk, say, that is about to be complained of
        people.print(what)


def answer(value: Mapping[str, Any], indent: int | None = None) -> None:
    """Print JSON for programs, on one line unless indented; ASCII, which every locale has.

    What several threads answer at once is printed one after the other.

    Raises:
        KeyboardInterrupt: the reader has gone.
        MachineError: stdout cannot be written.
    """
    try:
        with _line:
            print(json.dumps(value, indent=indent), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in it
        if isinstance(error, BrokenPipeError):
            raise KeyboardInterrupt from error
        raise MachineError(f"standard output cannot be written: {error.strerror}") from error


def duration(seconds: float) -> str:
    """A length of time as people say it: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def milliseconds(seconds: float | None) -> str:
    """A short time: 28.2 ms, 210 ms; - if it is not known."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def size(number: int) -> str:
    """Bytes as people say them: 1.2 MB, 3.4 GB."""
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 candidate, 3 candidates, 2 batches."""
    plural = noun + ("es" if noun.endswith(("s", "ch", "x")) else "s")
    return f"{number} {noun if number == 1 else plural}"
