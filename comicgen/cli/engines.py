"""The engines of a run: one for each numerics, opened when it is first needed."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from comicgen.engine import Engine, Event, GraphLabel
from comicgen.errors import InputError, MachineError
from comicgen.numerics import Numerics
from comicgen.plan import Batch


class Engines:
    """Draws each batch with the engine of its numerics, and lets that go after its last batch."""

    def __init__(self, open_engine: Callable[[Numerics], Engine]) -> None:
        """`open_engine` opens an engine, or raises an InputError or a MachineError."""
        self._open_engine = open_engine
        self._opened: dict[Numerics, Engine] = {}
        self._captures = 0
        self._drawn = False
        self._before: dict[Numerics, int] = {}

    def open(self, numerics: Numerics) -> Engine:
        """The engine of these numerics, opened now if it is not yet."""
        if numerics not in self._opened:
            self._opened[numerics] = self._open_engine(numerics)
            self._before[numerics] = self._captures
        return self._opened[numerics]

    def close(self, numerics: Numerics) -> None:
        """Let an engine go, and its memory with it."""
        del self._opened[numerics]
        gc.collect()

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Have the batch drawn; its engine is shown what of the rest is its own."""
        own = [each for each in upcoming if each.numerics == batch.numerics]
        for event in self._own(batch.numerics).draw(batch, own):
            yield self._numbered(event, batch.numerics) if isinstance(event, GraphLabel) else event
        if not own:
            self.close(batch.numerics)

    def _own(self, numerics: Numerics) -> Engine:
        """The engine of these numerics; what is wrong with it now stops a run that drew already."""
        drawn, self._drawn = self._drawn, True
        try:
            return self.open(numerics)
        except InputError as error:
            if not drawn:
                raise
            raise MachineError(str(error)) from error

    def _numbered(self, label: GraphLabel, numerics: Numerics) -> GraphLabel:
        """Among the captures of the run; an engine counts its own."""
        number = self._before[numerics] + label.number
        self._captures = max(self._captures, number)
        return replace(label, number=number)
