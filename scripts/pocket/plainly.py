"""One sentence for what whoever runs a script can mend, where a traceback would stand."""

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any


def a_number(text: str, what: str = "number", above: float = -inf) -> float:
    """A finite one, as an argument gives it. what: its name, should it be none."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not above < value < inf:
        raise ArgumentTypeError(f"{text} is no {what}")
    return value


a_time = partial(a_number, what="time in seconds", above=0)
"""Seconds, as an argument gives them."""


def read_json(file: Path) -> Any:
    """What a file of JSON holds, or the end of the program."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"{file} holds no JSON ({error}).") from error


@contextmanager
def plainly(*others: type[Exception]) -> Iterator[None]:
    """Ends the program with the message of an OSError, or of others, or after a Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (OSError, *others) as error:
        what = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SystemExit(f"{Path(sys.argv[0]).name}: {what}") from error
