"""The command line: parse, call, print. People are spoken to on stderr, programs on stdout."""

import os
import signal
import sys
from types import FrameType

from comicgen import beside


def main() -> None:
    """Run the command line and end the process with its exit code.

    Until it draws, Ctrl-C ends it at once: nothing is lost then, and not every library bears an
    exception while it is being loaded.
    """
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        from comicgen.cli.commands import run

        run()
    except KeyboardInterrupt:
        beside.end(130)
        sys.exit(130)
    except SystemExit as ended:
        beside.end(ended.code)
        raise
    finally:
        signal.signal(signal.SIGINT, former)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(130)
