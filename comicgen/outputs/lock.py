"""One writer to an output folder, on this machine or any that shares the disk."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from comicgen.errors import OutputError


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; the system releases it whatever the process dies of.

    Raises:
        OutputError: another process holds it.
        OSError: the folder cannot be written.
    """
    lock = FileLock(folder / ".lock")
    holder = folder / ".writer"  # not in the lock file, which who tries the lock may truncate
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise OutputError(
            f"another render ({_read(holder)}) is drawing into {folder}; "
            "wait for it, or stop it and give the same command again"
        ) from error
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _read(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8") or "just started"
    except FileNotFoundError:
        return "just started"
