"""The only writer of an output folder: first the picture, then its line in the journal."""

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from comicgen import __version__
from comicgen.engine import Drawn, Event, Failed, GraphLabel, Measured, Note
from comicgen.environment import Environment
from comicgen.errors import ComicgenError, MachineError, OutputError
from comicgen.numerics import Numerics
from comicgen.outputs import journal
from comicgen.outputs.disk import (
    disk_errors,
    make_folder,
    make_subfolder,
    remove_temporaries,
    replace,
    replacing,
)
from comicgen.outputs.entries import Asked, Begun, Done, Ended, Entry, Failure, Head, Settled
from comicgen.outputs.folder import path_from, read_journal
from comicgen.outputs.history import retire
from comicgen.outputs.journal import JOURNAL, Journal, Reading
from comicgen.outputs.lock import sole_writer
from comicgen.outputs.manifest import MANIFEST, encode_manifest
from comicgen.outputs.png import Encoding
from comicgen.outputs.png_text import encoding
from comicgen.outputs.recall import recall
from comicgen.plan import Batch, Candidate, Memory, Request
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard


class Outputs:
    """An output folder open for writing.

    Every method that writes raises DiskFull when no space is left, and OutputError when the
    folder cannot be written for another reason; what is finished stays. They are called by one
    thread at a time; `encoding` by as many as like.
    """

    def __init__(self, folder: Path, storyboard: Storyboard, environment: Environment) -> None:
        """Mend what an interrupted run left behind; the folder's lock must be held."""
        self.folder = folder
        self._storyboard = storyboard
        self._environment = environment
        remove_temporaries(folder)
        if not (folder / JOURNAL).exists():
            journal.create(folder / JOURNAL, _head(folder, storyboard, environment))
        reading = read_journal(folder, storyboard)
        assert reading
        _check_numerics(folder, reading.head, environment)
        self._head, self._entries = reading.head, list(reading.entries)
        self._journal = Journal(folder / JOURNAL, reading.length)
        self._write_manifest()

    @classmethod
    @contextmanager
    def open(cls, folder: Path, storyboard: Storyboard, environment: Environment) -> Iterator[Self]:
        """Take the folder for this process, creating it if need be.

        Raises:
            OutputError: the folder is busy, another storyboard's, damaged or cannot be written.
            DiskFull: no space is left.
        """
        reading = read_journal(folder, storyboard)  # nothing is written into a folder of others
        if reading:
            _check_numerics(folder, reading.head, environment)
        with ExitStack() as stack:
            with disk_errors(folder):
                make_folder(folder)
                stack.enter_context(sole_writer(folder))
                outputs = cls(folder, storyboard, environment)
                stack.callback(outputs._journal.close)
            yield outputs

    @property
    def memory(self) -> Memory:
        """What the folder remembers, with its files as they are now."""
        with disk_errors(self.folder):
            return recall(self.folder, Reading(self._head, tuple(self._entries), 0))

    def ask(self, request: Request) -> None:
        """Remember that the author asked for more than the storyboard says."""
        self._append(Asked(request.to_json()))

    def settle(self, sizes: Mapping[Size, Numerics]) -> None:
        """Remember the numerics of sizes before their first pictures are drawn."""
        for size, numerics in sizes.items():
            self._append(Settled(asdict(size), numerics))

    @contextmanager
    def run(self, pictures: int, choices: Sequence[Mapping[str, Any]] = ()) -> Iterator[None]:
        """One run that means to draw so many pictures; its end is recorded however it comes.

        `choices` tell how each bucket is drawn, as plain JSON.

        Raises:
            MachineError: the folder, good when it was opened, cannot be written any more.
        """
        begun = time.monotonic()
        warnings = self._storyboard.warnings
        self._append(Begun(_now(), self._environment.to_json(), pictures, warnings, choices))
        try:
            yield
        except BaseException as error:
            with suppress(ComicgenError):  # what ended the run says more than what follows from it
                self._end(time.monotonic() - begun, _why(error))
            if isinstance(error, OutputError):
                raise MachineError(str(error)) from error
            raise
        self._end(time.monotonic() - begun, None)

    def encoding(self, drawn: Drawn) -> Encoding:
        """The PNG of a picture, still to be made. Nothing is written."""
        return encoding(drawn.image, drawn.candidate, self._storyboard.model)

    def keep(self, event: Event, batch: Batch, png: bytes | None) -> None:
        """Save, or write down, what the engine says of a batch; `png` is the file of a picture."""
        match event:
            case Drawn():
                assert png is not None
                self.save(event, batch, png)
            case Failed():
                self.fail(event, batch)
            case Note() | GraphLabel():
                self._append(event)
            case Measured():
                pass  # of this machine, not of this folder

    def save(self, drawn: Drawn, batch: Batch, png: bytes) -> None:
        """Put a picture in its place, another that was there into the history, then its line."""
        candidate = drawn.candidate
        path = self.folder / candidate.file
        with disk_errors(self.folder):
            make_subfolder(path.parent)
            with replacing(path, png):
                retire(self.folder, path, png)
            now = path.stat()
        done = Done(
            **self._outcome(candidate, batch),
            file=candidate.file,
            sha256=sha256(png).hexdigest(),
            bytes=now.st_size,
            mtime_ns=now.st_mtime_ns,
            bucket=asdict(batch.bucket),
            lane=batch.lanes.index(candidate),
            seconds=drawn.seconds,
            notes=drawn.notes,
        )
        self._append(done)

    def fail(self, failed: Failed, batch: Batch) -> None:
        """Write down why a candidate could not be drawn; an older picture stays where it is."""
        self._append(Failure(**self._outcome(failed.candidate, batch), reason=failed.reason))

    def _outcome(self, candidate: Candidate, batch: Batch) -> dict[str, Any]:
        return {
            "candidate": candidate.name,
            "panel": candidate.panel.id,
            "number": candidate.number,
            "seed": candidate.seed,
            "fingerprint": candidate.fingerprint,
            "fields": candidate.fields,
            "environment": self._environment.drawing(batch.numerics).label,
        }

    def _end(self, seconds: float, stopped: str | None) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        self._append(Ended(_now(), seconds, memory, stopped))
        with disk_errors(self.folder):
            self._write_manifest()

    def _append(self, entry: Entry) -> None:
        with disk_errors(self.folder):
            self._journal.append(entry)
        self._entries.append(entry)

    def _write_manifest(self) -> None:
        path = self.folder / MANIFEST
        data = encode_manifest(self._entries)
        if not path.exists() or path.read_bytes() != data:
            replace(path, data)


def _head(folder: Path, storyboard: Storyboard, environment: Environment) -> Head:
    return Head(
        storyboard=storyboard.name,
        path=path_from(folder, storyboard),
        numerics=environment.kind,
        comicgen=__version__,
    )


def _check_numerics(folder: Path, head: Head, environment: Environment) -> None:
    """Someone else may have begun the folder since it was looked at."""
    if head.numerics != environment.kind:
        raise OutputError(
            f"{folder} is drawn with {head.numerics} numerics, not with {environment.kind}, since "
            "another process began it; give the command again, or give --output another folder"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _why(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, ComicgenError) else f"{type(error).__name__}: {error}"
