"""Speaking: sentences to people on stderr, JSON lines to programs on stdout."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

people = Console(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text without control characters, so that nothing an author wrote steers a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def say(text: str, style: str = "") -> None:
    """Print a sentence for people."""
    people.print(Text(printable(text), style=style))


def answer(value: Mapping[str, Any]) -> None:
    """Print one line of JSON for programs."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def duration(seconds: float) -> str:
    """A length of time as people say it: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 candidate, 3 candidates, 2 batches."""
    plural = noun + ("es" if noun.endswith(("s", "ch", "x")) else "s")
    return f"{number} {noun if number == 1 else plural}"
