"""One sentence for what whoever runs a script can mend, where a traceback would stand."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def plainly(*others: type[Exception]) -> Iterator[None]:
    """Ends the program with the message of an OSError, or of others."""
    try:
        yield
    except (OSError, *others) as error:
        what = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SystemExit(f"{Path(sys.argv[0]).name}: {what}") from error
