"""The host's work beside the drawing: encoders, several at once, and one writer after them."""

import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from comicgen.engine import Drawn, Event
from comicgen.outputs.writer import Outputs
from comicgen.plan import Batch

WAITING = 32
"""Events that may wait to be kept. A picture of a megapixel is 3 MB, and its PNG about half."""

ENCODERS = 16
"""At most so many threads encode, however many cores there are."""


class Keeping:
    """Keeps events in the order in which they are taken, and reports each once it is kept.

    Pictures are encoded in stripes, in any order; one thread, the writer, keeps and reports.
    After an event that could not be kept or reported nothing more is kept; the error is raised in
    the thread that takes, at the next event or at the end. Leaving the block waits until everything
    is kept; a KeyboardInterrupt drops what waits, and only what is being written is finished.
    """

    def __init__(self, outputs: Outputs, report: Callable[[Event], object]) -> None:
        self.kept: Counter[type[Event]] = Counter()
        self._outputs = outputs
        self._report = report
        cores = len(os.sched_getaffinity(0))
        self._encoders = ThreadPoolExecutor(min(cores, ENCODERS), "encoder")
        self._writer = ThreadPoolExecutor(1, "writer")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
            elif not isinstance(error, KeyboardInterrupt):
                wait(self._waiting)  # and tell of `error`, not of what follows from it
        finally:
            self._stop()

    def take(self, event: Event, batch: Batch) -> None:
        """Have an event of a batch kept; wait only while too many others do.

        Raises:
            MachineError, OutputError, KeyboardInterrupt: as the writer met it at an earlier event.
        """
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= WAITING):
            self._waiting.popleft().result()
        png = self._encode(event) if isinstance(event, Drawn) else None
        before = self._waiting[-1] if self._waiting else None
        self._waiting.append(self._writer.submit(self._keep, event, batch, png, before))

    def finish(self) -> None:
        """Wait until everything that was taken is kept and reported; raises what `take` does."""
        while self._waiting:
            self._waiting.popleft().result()

    def _encode(self, drawn: Drawn) -> Callable[[], bytes]:
        """Begin to; the stripes of a picture wait for nothing but a thread."""
        encoding = self._outputs.encoding(drawn)
        begun = [self._encoders.submit(encoding.deflate, each) for each in encoding.stripes]
        return lambda: encoding.join(each.result() for each in begun)

    def _keep(
        self,
        event: Event,
        batch: Batch,
        png: Callable[[], bytes] | None,
        before: Future[None] | None,
    ) -> None:
        if before is not None:
            before.result()  # nothing is kept after what could not be
        self._outputs.keep(event, batch, png() if png else None)
        self.kept[type(event)] += 1
        self._report(event)

    def _stop(self) -> None:
        """Drop what waits, in all threads, and only then wait for what they are about."""
        for pool in (self._writer, self._encoders):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._writer, self._encoders):
            pool.shutdown()
