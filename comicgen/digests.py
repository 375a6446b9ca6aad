"""SHA-256 digests of files, remembered between runs.

What was read once is trusted as long as path, size and modification time are the same. A file
that had changed within `SETTLED` before it was read may change again without a new time, so it
is not remembered (git treats "racily clean" files so, see its Documentation/technical/racy-git).
"""

import atexit
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

from comicgen import beside
from comicgen.cache import cache_folder, read_cache, write_cache

SETTLED = 2_000_000_000  # ns; the coarsest clock of a common file system, FAT, ticks every 2 s
MANY = 8192  # entries, about 1 MB of JSON
WORTH_SAVING = 64 << 20  # bytes, about 0.1 s of reading; less is saved when the program ends
LARGE = 1 << 30  # bytes, whose reading takes a second or so
AT_LEAST, AT_ONCE = 256 << 10, 1 << 20  # bytes, which a processor's caches hold
AT_ONCE_BESIDE = 64 << 20  # beside a thread that lets others go on no sooner than it must

Entry = tuple[int, int, str]  # size in bytes, mtime in ns, SHA-256 in hex


def digest_file(path: Path) -> str:
    """The SHA-256 of a file's content in hex.

    Raises:
        OSError: the file cannot be read.
    """
    return _remembered(_cache_file()).digest(path)


def digest_files(folder: Path, files: Iterable[Path]) -> str:
    """The SHA-256, in hex, over contents and names of these files of a folder.

    A name counts as seen from the folder: where that lies is no matter.

    Raises:
        OSError: one of the files cannot be read.
    """
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    lines = (f"{digest_file(folder / name)} {name}\n" for name in names)
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def while_digesting(work: Callable[[], object]) -> Iterator[None]:
    """Have a thread do some work as soon as a large file must be read, as Python is free then.

    What goes wrong there is not told: whoever needs the work does it again.
    """
    _meanwhile.work = work
    try:
        yield
    finally:
        _meanwhile.work = None


class _Meanwhile:
    """What a thread is to do, or does, while files are digested."""

    work: Callable[[], object] | None = None
    begun: Future[object] | None = None

    def begin(self) -> None:
        if self.work is not None:
            self.begun, self.work = beside.begin(self.work), None

    @property
    def at_once(self) -> int:
        return AT_ONCE_BESIDE if self.begun and not self.begun.done() else AT_ONCE


_meanwhile = _Meanwhile()


def _cache_file() -> Path | None:
    folder = cache_folder()
    return folder / "digests.json" if folder else None


@cache
def _remembered(file: Path | None) -> "_Digests":
    digests = _Digests(file)
    atexit.register(digests.save)
    return digests


class _Digests:
    """The digests in one cache file, and those found since it was read."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = _read(file)
        self._new: dict[str, Entry] = {}
        self._unsaved = 0

    def digest(self, path: Path) -> str:
        key, before = os.path.abspath(path), path.stat()
        size, mtime, digest = self._known.get(key, (-1, -1, ""))
        if (size, mtime) == (before.st_size, before.st_mtime_ns):
            return digest
        now = time.time_ns()
        if before.st_size >= LARGE:
            _meanwhile.begin()
        with path.open("rb", buffering=0) as file:
            digest = _digest(file, before.st_size)
            after = os.fstat(file.fileno())
        unchanged = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if unchanged and after.st_mtime_ns < now - SETTLED:
            self._remember(key, (after.st_size, after.st_mtime_ns, digest))
        return digest

    def _remember(self, key: str, entry: Entry) -> None:
        self._known[key] = self._new[key] = entry
        self._unsaved += entry[0]
        if self._unsaved >= WORTH_SAVING:
            self.save()

    def save(self) -> None:
        """Add what is new to the cache file; a cache that cannot be written is done without."""
        if not self._new or self._file is None:
            return
        entries = _read(self._file) | self._new
        if len(entries) > MANY:
            entries = {key: entry for key, entry in entries.items() if os.path.exists(key)}
        write_cache(self._file, entries)
        self._new, self._unsaved = {}, 0


def _digest(file: FileIO, size: int) -> str:
    at_once = min(max(size + 1, AT_LEAST), _meanwhile.at_once)
    digest, part = hashlib.sha256(), memoryview(bytearray(at_once))
    while read := file.readinto(part):
        digest.update(part[:read])
    return digest.hexdigest()


def _read(file: Path | None) -> dict[str, Entry]:
    """The entries of a cache file; whatever is missing or damaged counts as not there."""
    content = read_cache(file)
    if not isinstance(content, dict):
        return {}
    return {key: (entry[0], entry[1], entry[2]) for key, entry in content.items() if _sound(entry)}


def _sound(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [int, int, str]
        and len(entry[2]) == 64
    )
