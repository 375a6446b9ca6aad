"""Threads that prepare a drawing beside what comes before it. It may never come."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

_Result = TypeVar("_Result")

_NAME = "beside"


def begin(work: Callable[[], _Result]) -> Future[_Result]:
    """Have a thread do some work, or do it now where the system has no thread left."""
    found = Future[_Result]()

    def do() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - result() raises it
            found.set_exception(error)

    try:
        threading.Thread(target=do, name=_NAME).start()
    except RuntimeError:
        do()
    return found


def end(code: object) -> None:
    """End the process where a thread is left whose work nobody waits for, as Python would."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0)
