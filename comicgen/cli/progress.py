"""What `render` tells while it draws: a bar and an ETA to people, lines to programs."""

from contextlib import suppress
from dataclasses import asdict
from statistics import mean
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from comicgen.cli.say import answer, duration, people, say
from comicgen.engine import Drawn, Event, Failed, GraphLabel, Note
from comicgen.plan import Batch, Candidate, Eta, Plan
from comicgen.render import Stopping


class Progress:
    """A bar on stderr, whose ETA comes from measured costs; failures and notes above it.

    Where stderr is no terminal but a log, it is a line for each candidate instead. One thread
    tells of events; `Stopping` may come from any, for rich's console and bar have their locks.
    """

    def __init__(self, todo: Plan) -> None:
        self._eta = Eta(todo.batches, todo.costs)
        self._batch_of = {each.name: batch for batch in todo.batches for each in batch.candidates}
        self._open: dict[int, list[float | None]] = {}
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[eta]}")
        self._bar = Bar(
            *(TextColumn(each) if isinstance(each, str) else each for each in columns),
            console=people,
            disable=not people.is_terminal,
        )
        self._task = self._bar.add_task("drawing", total=todo.pictures, eta=self._left())

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # of a terminal that was closed meanwhile
            self._bar.stop()

    def __call__(self, event: Event | Stopping) -> None:
        """Tell of an event."""
        match event:
            case Drawn(candidate=candidate, seconds=seconds, notes=notes):
                self._count(candidate, seconds)
                for note in notes:
                    say(f"{candidate.name}: {note}", style="yellow")
            case Failed(candidate=candidate, reason=reason):
                self._count(candidate, None)
                say(f"{candidate.name} failed: {reason}", style="red")
            case Note(text=text):
                say(text)
            case Stopping():
                say("stopping after this batch; press Ctrl-C again to stop now", style="yellow")

    def _count(self, candidate: Candidate, seconds: float | None) -> None:
        batch = self._batch_of[candidate.name]
        took = self._open.setdefault(id(batch), [])
        took.append(seconds)
        if len(took) == len(batch.candidates):
            self._finish(batch, self._open.pop(id(batch)))
        name = f"drew {candidate.name}" if seconds is not None else f"{candidate.name} failed"
        self._bar.update(self._task, advance=1, description=name, eta=self._left())
        if self._bar.disable:
            task = self._bar.tasks[0]
            say(f"{task.completed:.0f}/{task.total:.0f} {name}, {self._left()}")

    def _finish(self, batch: Batch, took: list[float | None]) -> None:
        measured = [seconds for seconds in took if seconds is not None]
        self._eta.finished(batch, mean(measured) * batch.bucket.batch if measured else None)

    def _left(self) -> str:
        seconds = self._eta.remaining()
        return "no estimate yet" if seconds is None else f"{duration(seconds)} left"


def print_line(event: Event | Stopping) -> None:
    """Print an event as a line of JSON on stdout."""
    match event:
        case Drawn(candidate=candidate, seconds=seconds, notes=notes):
            drawn = {"candidate": candidate.name, "file": candidate.file, "notes": list(notes)}
            answer({"event": "drawn", **drawn, "seconds": round(seconds, 3)})
        case Failed(candidate=candidate, reason=reason):
            answer({"event": "failed", "candidate": candidate.name, "reason": reason})
        case Note(text=text):
            answer({"event": "note", "text": text})
        case GraphLabel(seconds=seconds):
            answer({"event": "graph", **asdict(event), "seconds": round(seconds, 3)})
        case Stopping():
            answer({"event": "stopping"})
