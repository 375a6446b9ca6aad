"""The loop: draw, and have it kept and reported beside the drawing."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIG_IGN
from types import FrameType
from typing import Self

from comicgen.engine import Drawn, Engine, Event, Failed
from comicgen.outputs import Keeping, Outputs
from comicgen.plan import Plan


@dataclass(frozen=True, slots=True)
class Stopping:
    """The author asked to stop: the running batch is finished first."""


@dataclass(frozen=True, slots=True)
class Result:
    """How many candidates were drawn and how many failed, and whether the author stopped it."""

    drawn: int = 0
    failed: int = 0
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 done, 3 finished with failed candidates, 130 interrupted."""
        if self.interrupted:
            return 130
        return 3 if self.failed else 0


Report = Callable[[Event | Stopping], object]


def render(plan: Plan, engine: Engine, outputs: Outputs, report: Report) -> Result:
    """Draw all batches of a plan; `report` is told of each event once it is kept, by the writer.

    The first SIGINT or SIGTERM stops after the running batch, and `report` is told of it from
    within the signal handler; the next one stops at once: only what is being written is finished.

    Raises:
        MachineError: the disk is full, the output folder cannot be written any more, or the
            device is lost; what was kept stays.
    """
    interrupted = False
    keeping = Keeping(outputs, report)
    try:
        choices = [choice.to_json() for choice in plan.choices]
        with Interruption(report) as interruption, outputs.run(plan.pictures, choices), keeping:
            for number, batch in enumerate(plan.batches, start=1):
                interruption.heed(keeping.finish)
                for event in engine.draw(batch, plan.batches[number:]):
                    keeping.take(event, batch)
    except KeyboardInterrupt:
        interrupted = True
    drawn, failed = keeping.kept[Drawn], keeping.kept[Failed]
    assert interrupted or drawn + failed == plan.pictures, "the engine left candidates out"
    return Result(drawn, failed, interrupted)


class Interruption:
    """While it lasts, the first signal waits for `heed`, and the second interrupts at once.

    The third ends the process, like a kill, for what the run still waits for may never come: a
    reader that has stalled, a disk that does not answer.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._heard = 0

    def __enter__(self) -> Self:
        heard = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        # What the caller ignores, as a shell does for commands in the background, stays ignored.
        self._former = {each: now for each, now in heard.items() if now not in (None, SIG_IGN)}
        for each in self._former:
            signal.signal(each, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._former.items():
            signal.signal(each, handler)

    def heed(self, finish: Callable[[], object]) -> None:
        """If a signal came, finish what is to be finished and raise KeyboardInterrupt."""
        if self._heard:
            finish()
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        if self._heard == 1:
            self._report(Stopping())
        elif self._heard == 2:
            raise KeyboardInterrupt
        else:
            os._exit(130)
