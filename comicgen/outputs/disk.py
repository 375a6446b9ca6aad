"""Files that are either whole or absent, whatever stops the program or the machine."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comicgen.errors import DiskFull, OutputError

TEMPORARY = ".comicgen-"


@contextmanager
def replacing(path: Path, data: bytes) -> Iterator[None]:
    """Write `data` beside `path`; when the block ends well, put it in the place of `path`.

    What the block does happens after the new file is safe and before the old one is gone.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        _write(temporary, data)
        yield
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of the file `path`, or leave that as it is."""
    with replacing(path, data):
        pass


def append(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file and wait until the disk has it."""
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """Create `folder`, and those above it, so that a power loss does not take it away again."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def make_subfolder(folder: Path) -> None:
    """Create `folder` in one that there is; it is an error if that has been moved away."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows the names in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Remove what an interrupted `replacing` left in `folder` and the folders in it."""
    for pattern in (f"{TEMPORARY}*", f"*/{TEMPORARY}*"):
        for path in folder.glob(pattern):
            path.unlink()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Say in one sentence why the system refuses to read or write in `folder`.

    Raises:
        DiskFull: no space is left, or the user's quota is used up.
        OutputError: anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"no space is left for {folder}; free some and give the same command again: "
                "what is finished stays"
            ) from error
        raise OutputError(
            f"the output folder {folder} cannot be used: {error.strerror or error} "
            f"({error.filename or 'while writing'}); mend that, or give --output another folder"
        ) from error


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        append(descriptor, data)
    finally:
        os.close(descriptor)
