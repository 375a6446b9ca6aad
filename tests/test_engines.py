"""The engines of a run: each batch is drawn by that of its numerics, one after the other."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from plan_stories import only_candidate, panel, story
from sketch_run import alone

from comicgen.cli.engines import Engines
from comicgen.engine import Event, GraphLabel
from comicgen.errors import ComicgenError, InputError
from comicgen.numerics import Numerics
from comicgen.plan import Batch
from comicgen.sketch import Sketch


class Watched(Sketch):
    """Writes down what it is asked to draw, and what it is shown of the rest."""

    def __init__(self, numerics: Numerics, seen: list[tuple[Numerics, int]]) -> None:
        self._numerics = numerics
        self._seen = seen

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        assert {each.numerics for each in (batch, *upcoming)} == {self._numerics}
        self._seen.append((self._numerics, len(upcoming)))
        yield from super().draw(batch, upcoming)


class Opened:
    """Engines that tell when they are opened, and which of them are still there."""

    def __init__(self) -> None:
        self.order: list[Numerics] = []
        self.seen: list[tuple[Numerics, int]] = []
        self.alive: weakref.WeakValueDictionary[Numerics, Watched] = weakref.WeakValueDictionary()
        self.engines = Engines(self._open)

    def _open(self, numerics: Numerics) -> Watched:
        self.order.append(numerics)
        engine = Watched(numerics, self.seen)
        self.alive[numerics] = engine
        return engine

    def draw(self, *kinds: Numerics) -> int:
        """How many events come of batches of these numerics."""
        batch = alone(only_candidate(story(panel())))
        batches = [replace(batch, numerics=kind) for kind in kinds]
        return sum(
            len(list(self.engines.draw(each, batches[number:])))
            for number, each in enumerate(batches, start=1)
        )


def test_an_engine_is_opened_when_it_is_first_needed_and_once() -> None:
    opened = Opened()
    opened.engines.open("fused")
    assert opened.order == ["fused"]

    assert opened.draw("fused", "fused", "plain", "plain") == 4
    assert opened.order == ["fused", "plain"]


def test_each_engine_is_shown_only_its_own_of_the_rest() -> None:
    opened = Opened()
    opened.draw("fused", "plain", "fused", "plain")

    assert opened.seen == [("fused", 1), ("plain", 1), ("fused", 0), ("plain", 0)]


def test_an_engine_goes_before_the_next_one_comes() -> None:
    opened = Opened()
    opened.draw("fused", "fused")
    gc.collect()

    assert list(opened.alive) == []


class Capturing(Sketch):
    """Says that it captured its first graph, as every engine calls it."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        yield GraphLabel(1, str(batch.bucket), 1.0, 0, 0, 0, "some")


def test_the_captures_of_all_engines_are_numbered_together() -> None:
    engines = Engines(lambda numerics: Capturing())
    batch = alone(only_candidate(story(panel())))
    kinds: list[Numerics] = ["fused", "plain"]
    labels = [event for kind in kinds for event in engines.draw(replace(batch, numerics=kind), ())]

    assert [label.number for label in labels if isinstance(label, GraphLabel)] == [1, 2]


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_wrong_stops_a_run_that_has_drawn_already(first: bool) -> None:
    """Code 2 would say that nothing was written."""

    def open_engine(numerics: Numerics) -> Sketch:
        if first or numerics == "plain":
            raise InputError("the model has changed")
        return Sketch()

    engines = Engines(open_engine)
    batch = alone(only_candidate(story(panel())))
    if not first:
        list(engines.draw(replace(batch, numerics="fused"), ()))

    with pytest.raises(ComicgenError, match="the model has changed") as stopped:
        list(engines.draw(replace(batch, numerics="plain"), ()))
    assert stopped.value.exit_code == (2 if first else 4)
