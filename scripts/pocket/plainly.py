"""One sentence for what whoever runs a script can mend, where a traceback would stand."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path


def a_time(text: str) -> float:
    """Seconds, as an argument gives them."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise ArgumentTypeError(f"{text} is no time in seconds")
    return value


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
