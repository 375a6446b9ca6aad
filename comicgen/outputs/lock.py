"""One writer to an output folder, on this machine or any that shares the disk."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from comicgen.errors import OutputError
from comicgen.outputs.disk import disk_errors

LOCK = ".lock"
HOLDER = ".writer"
"""Who holds the lock; not in the lock file, which who tries the lock may truncate."""


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; where the file system has locks, it ends with the process.

    Raises:
        OutputError: another process holds it.
        OSError: the folder cannot be written.
    """
    lock = _acquire(folder)
    try:
        name = f"process {os.getpid()} on {socket.gethostname()}"
        (folder / HOLDER).write_text(name, encoding="utf-8")
        yield
    finally:
        lock.release()


def refuse_unusable(folder: Path) -> None:
    """Find out early, and write nothing, whether `folder` cannot be written or is being drawn into.

    Raises:
        OutputError: so it is.
    """
    with disk_errors(folder):
        if (folder / LOCK).exists():
            _acquire(folder).release()
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if not os.access(there, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write", str(there))


def _acquire(folder: Path) -> BaseFileLock:
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise OutputError(
            f"another render ({_read(folder / HOLDER)}) is drawing into {folder}; "
            "wait for it, or stop it and give the same command again"
        ) from error
    return lock


def _read(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8", errors="replace") or "just started"
    except OSError:
        return "just started"
