"""Threads that prepare what comes next beside what is done now. It may never come."""

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
    found = start(work, _NAME, daemon=False)
    if found is None:
        found = Future()
        _do(work, found)
    return found


def start(work: Callable[[], _Result], name: str, daemon: bool) -> Future[_Result] | None:
    """Have a thread of this name do some work; None where the system has no thread left.

    A daemon does not keep the process.
    """
    found = Future[_Result]()
    try:
        threading.Thread(target=_do, args=(work, found), name=name, daemon=daemon).start()
    except RuntimeError:
        return None
    return found


def end(code: object) -> None:
    """End the process where a thread is left whose work nobody waits for, as Python would."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0)


def _do(work: Callable[[], _Result], found: Future[_Result]) -> None:
    try:
        found.set_result(work())
    except BaseException as error:  # noqa: BLE001 - result() raises it
        found.set_exception(error)
