"""The loop draws, keeps and reports, and ends as it is told to."""

import os
import signal
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sketch_run import candidates, draw, journal, manifest, panel, pictures, story

from comicgen.engine import Drawn, Event, Failed, Note
from comicgen.errors import DeviceLost
from comicgen.outputs import folder_for
from comicgen.outputs.keeping import WAITING
from comicgen.plan import Batch, Candidate
from comicgen.render import Interruption, Stopping
from comicgen.sketch import Sketch, sketch


class Disturbed(Sketch):
    """Does something before it draws its so-manieth candidate, counted from 1."""

    def __init__(self, at: int, disturb: Callable[[], object]) -> None:
        self._left = at
        self._disturb = disturb

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        for event in super().draw(batch, upcoming):
            self._left -= 1
            if self._left == 0:
                self._disturb()
            yield event


class Failing(Sketch):
    """Cannot draw some candidates, and remarks on each batch."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        yield Note("a remark")
        for event in super().draw(batch, upcoming):
            assert isinstance(event, Drawn)
            failed = event.candidate.name in self._names
            yield Failed(event.candidate, "not a number") if failed else event


def signal_once(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def signal_twice() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def test_every_candidate_is_drawn_kept_and_reported(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    reported: list[Any] = []

    result = draw(storyboard, report=reported.append)

    names = {each.name for each in candidates(storyboard)}
    assert (result.drawn, result.failed, result.interrupted, result.exit_code) == (6, 0, False, 0)
    assert names == {event.candidate.name for event in reported}
    assert names == {Path(file).stem for file in pictures(storyboard)}
    assert draw(storyboard).drawn == 0


def test_the_engine_is_shown_what_comes_after_each_batch(tmp_path: Path) -> None:
    shown: list[tuple[Batch, Sequence[Batch]]] = []

    class Watching(Sketch):
        def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
            shown.append((batch, upcoming))
            return super().draw(batch, upcoming)

    draw(story(tmp_path), Watching(), batch=2)

    batches = [batch for batch, _ in shown]
    assert [tuple(batches[n:]) for n in range(1, len(batches) + 1)] == [rest for _, rest in shown]


def test_one_bad_candidate_costs_no_other(tmp_path: Path) -> None:
    storyboard = story(tmp_path)

    result = draw(storyboard, Failing("p01-c02"), batch=4)

    assert (result.drawn, result.failed, result.exit_code) == (5, 1, 3)
    assert len(pictures(storyboard)) == 5
    [failed] = [each for each in manifest(storyboard)["candidates"] if each["status"] == "failed"]
    assert (failed["name"], failed["reason"]) == ("p01-c02", "not a number")
    assert [line["reason"] for line in journal(storyboard, "failed")] == ["not a number"]
    assert set(manifest(storyboard)["runs"][0]["notes"]) == {"a remark"}


def test_only_what_failed_is_drawn_again(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    draw(storyboard, Failing("p01-c02"))

    result = draw(storyboard)

    assert (result.drawn, result.failed, result.exit_code) == (1, 0, 0)
    assert {each["status"] for each in manifest(storyboard)["candidates"]} == {"done"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_after_the_running_batch(
    tmp_path: Path, number: signal.Signals
) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=12, steps=1000))
    reported: list[Any] = []

    result = draw(storyboard, Disturbed(5, signal_once(number)), batch=4, report=reported.append)

    assert (result.drawn, result.interrupted, result.exit_code) == (8, True, 130)
    assert len(pictures(storyboard)) == 8
    assert Counter(map(type, reported)) == {Drawn: 8, Stopping: 1}
    assert manifest(storyboard)["runs"][0]["stopped"] == "interrupted"
    assert len(manifest(storyboard)["candidates"]) == 8
    assert draw(storyboard, batch=4).drawn == 4


def test_the_second_signal_stops_at_once_without_a_partial_file(tmp_path: Path) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=8, steps=1000))

    result = draw(storyboard, Disturbed(6, signal_twice), batch=4)

    assert (result.interrupted, result.exit_code) == (True, 130)
    assert [f"p01/p01-c0{n + 1}.png" for n in range(result.drawn)] == list(pictures(storyboard))
    assert not list(folder_for(storyboard.path).rglob(".comicgen-*"))
    assert len(manifest(storyboard)["candidates"]) == result.drawn <= 5
    assert draw(storyboard, batch=4).drawn == 8 - result.drawn


def test_a_signal_in_the_last_batch_lets_the_run_end_well(tmp_path: Path) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=4, steps=1000))

    result = draw(storyboard, Disturbed(4, signal_once(signal.SIGINT)), batch=4)

    assert (result.drawn, result.interrupted, result.exit_code) == (4, False, 0)


def test_signals_are_handled_as_before_after_the_run(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    draw(story(tmp_path), Disturbed(2, signal_twice))

    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def lose_the_device() -> None:
    raise DeviceLost("the GPU does not answer any more")


def test_a_lost_device_ends_the_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    storyboard = story(tmp_path)

    with pytest.raises(DeviceLost) as lost:
        draw(storyboard, Disturbed(3, lose_the_device))

    assert lost.value.exit_code == 4
    assert len(pictures(storyboard)) == len(manifest(storyboard)["candidates"]) == 2
    assert manifest(storyboard)["runs"][0]["stopped"] == "the GPU does not answer any more"
    assert draw(storyboard).drawn == 4


def test_pictures_are_not_held_after_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    held: list[weakref.ref[Image.Image]] = []
    most = 0

    class Remembering(Sketch):
        def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
            for candidate in batch.candidates:
                image = sketch(candidate)
                held.append(weakref.ref(image))
                yield Drawn(candidate, image, 0.0)

    def count(event: object) -> None:
        nonlocal most
        most = max(most, sum(image() is not None for image in tuple(held)))

    panels = [panel(f"p{number:03d}", candidates=4) for number in range(100)]

    assert draw(story(tmp_path, *panels), Remembering(), batch=4, report=count).drawn == 400
    assert most <= WAITING + 2  # one that was just kept, one that waits for a place


class TestSketch:
    def pixels(self, candidate: Candidate) -> np.ndarray[Any, Any]:
        return np.asarray(sketch(candidate), dtype=np.int16)

    def test_the_same_candidate_is_drawn_the_same(self, tmp_path: Path) -> None:
        first, *_ = candidates(story(tmp_path))

        assert np.array_equal(self.pixels(first), self.pixels(first))
        assert self.pixels(first).shape == (32, 48, 3)

    def test_candidates_and_panels_can_be_told_apart(self, tmp_path: Path) -> None:
        one, two, *_ = candidates(story(tmp_path))
        other, *_ = candidates(story(tmp_path, panel("p01", prompt="a ship")))

        for another in (two, other):
            assert np.abs(self.pixels(one) - self.pixels(another)).mean() > 8


def test_a_signal_that_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    """As SIGINT is for what a shell runs in the background."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption(lambda _: None) as interruption:
            signal.raise_signal(signal.SIGINT)
            interruption.heed(lambda: pytest.fail("nothing was to be heeded"))
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
