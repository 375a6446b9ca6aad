"""What the journal says, together with how the files are now."""

import errno
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from comicgen.digests import digest_file
from comicgen.numerics import kind_of
from comicgen.outputs.entries import Asked, Done, Entry, Failure, Settled
from comicgen.outputs.journal import Reading
from comicgen.plan import Memory, Past, Request, Reseed
from comicgen.sizes import Size


def recall(folder: Path, reading: Reading) -> Memory:
    """The memory of an output folder with this journal.

    Raises:
        OSError: a picture is there and cannot be read.
    """
    entries = reading.entries
    last = last_lines(entries)
    waiting = _waiting(entries)
    requests = [request for request, _ in waiting]
    return Memory(
        candidates={name: _past(folder, entry) for name, entry in last.items()},
        more=_more(requests),
        reseeds=_reseeds(requests),
        asked=frozenset().union(*(names & request.asked for request, names in waiting)),
        requests=tuple(request for request, names in waiting if names),
        numerics=kind_of(reading.head.numerics),
        sizes={Size(**each.size): each.numerics for each in entries if isinstance(each, Settled)},
    )


def last_lines(entries: Iterable[Entry]) -> dict[str, Done | Failure]:
    """The last that was said of each candidate, by its name."""
    return {entry.candidate: entry for entry in entries if isinstance(entry, Done | Failure)}


def _waiting(entries: Iterable[Entry]) -> list[tuple[Request, set[str]]]:
    """Each request with those of its candidates that have no line after it."""
    waiting: list[tuple[Request, set[str]]] = []
    for entry in entries:
        if isinstance(entry, Asked):
            request = Request.from_json(entry.request)
            waiting.append((request, set(request.names)))
        elif isinstance(entry, Done | Failure):
            for _, names in waiting:
                names.discard(entry.candidate)
    return waiting


def _more(requests: Iterable[Request]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for request in requests:
        total.update(request.more)
    return total


def _reseeds(requests: Iterable[Request]) -> Mapping[str, Reseed]:
    return {name: reseed for request in requests for name, reseed in request.reseeds.items()}


def _past(folder: Path, entry: Done | Failure) -> Past:
    if isinstance(entry, Failure):
        return Past(
            "failed", entry.fingerprint, entry.fields, entry.environment, detail=entry.reason
        )
    state, detail = _state(folder / entry.file, entry)
    told = (entry.fingerprint, entry.fields, entry.environment, entry.seconds, detail)
    return Past(state, *told, entry.bytes)


def _state(path: Path, entry: Done) -> tuple[Literal["done", "missing", "damaged"], str]:
    """How a picture is, and in what it differs. Its content is read only if it looks touched."""
    try:
        now = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing", entry.file
    except OSError as error:
        if error.errno != errno.ELOOP:  # a disk that fails does not make a picture damaged
            raise
        return "damaged", f"{entry.file} is a link to itself"
    if not stat.S_ISREG(now.st_mode):
        return "damaged", f"{entry.file} is no file"
    if now.st_size != entry.bytes:
        return "damaged", f"{entry.file} has {now.st_size} bytes, not {entry.bytes}"
    if now.st_mtime_ns != entry.mtime_ns and digest_file(path) != entry.sha256:
        return "damaged", f"the content of {entry.file} has changed"
    return "done", ""
