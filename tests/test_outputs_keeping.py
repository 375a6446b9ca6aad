"""Pictures are encoded and kept beside the drawing, in order, and nothing is lost on the way."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sketch_run import candidates, draw, journal, manifest, panel, pictures, story

from comicgen.engine import Drawn, Event, Failed, Note
from comicgen.errors import DeviceLost, DiskFull, MachineError
from comicgen.outputs import keeping, writer
from comicgen.outputs.keeping import WAITING
from comicgen.outputs.png import Encoding, Stripe
from comicgen.outputs.png_text import encoding
from comicgen.plan import Batch, Candidate
from comicgen.render import Stopping
from comicgen.sketch import Sketch
from comicgen.storyboard import Model

LONG = 60  # seconds after which a test that waits for a thread fails instead


@pytest.fixture(autouse=True)
def _four_cores_and_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    before = threading.enumerate()
    yield
    assert before == threading.enumerate()


def before_encoding(monkeypatch: pytest.MonkeyPatch, do: Mapping[str, Callable[[], Any]]) -> None:
    """Have something done in the thread that is about to encode the candidate of a name."""

    def encode(image: Image.Image, candidate: Candidate, model: Model) -> Encoding:
        own = do.get(candidate.name, lambda: None)
        usual = encoding(image, candidate, model)
        return Watched(usual.pixels, usual.text, own)

    monkeypatch.setattr(writer, "encoding", encode)


@dataclass(frozen=True)
class Watched(Encoding):
    """Does something before its first stripe."""

    do: Callable[[], Any]

    def deflate(self, first: int) -> Stripe:
        if first == 0:
            self.do()
        return super().deflate(first)


def wait_for(happened: threading.Event) -> None:
    assert happened.wait(LONG)


def name(event: Any) -> str:
    return str(event.text if isinstance(event, Note) else event.candidate.name)


class Endless(Sketch):
    """Never stops remarking; says how often it did, and when it is well ahead."""

    def __init__(self) -> None:
        self.said = 0
        self.ahead = threading.Event()

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        while True:
            self.said += 1
            if self.said > WAITING:
                self.ahead.set()
            yield Note(f"remark {self.said}")


class Moody(Sketch):
    """Remarks on each picture; the second of a panel fails."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        for event in super().draw(batch, upcoming):
            assert isinstance(event, Drawn)
            bad = event.candidate.number == 2
            yield Failed(event.candidate, "not a number") if bad else event
            yield Note(f"after {event.candidate.name}")


def test_events_are_kept_and_reported_in_their_order_however_long_encoding_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storyboard = story(tmp_path, panel("p01"), panel("p02"))
    last_is_begun = threading.Event()
    slow = {"p01-c01": lambda: wait_for(last_is_begun), "p02-c01": last_is_begun.set}
    before_encoding(monkeypatch, slow)
    reported: list[str] = []

    draw(storyboard, Moody(), report=lambda event: reported.append(name(event)))

    outcomes = [("done", "p01-c01"), ("failed", "p01-c02"), ("done", "p02-c01")]
    outcomes.append(("failed", "p02-c02"))
    expected = [each for kind, of in outcomes for each in ((kind, of), ("note", f"after {of}"))]
    lines = journal(storyboard)[2:-1]
    assert expected == [(each["event"], each.get("candidate") or each["text"]) for each in lines]
    assert reported == [told for _, told in expected]


def test_pictures_are_encoded_several_at_once_and_written_by_one_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=8))
    together = threading.Barrier(4)
    encoders: set[int] = set()
    writers: set[int] = set()

    def meet() -> None:
        encoders.add(threading.get_ident())
        together.wait(LONG)

    before_encoding(monkeypatch, {each.name: meet for each in candidates(storyboard)})

    result = draw(storyboard, report=lambda event: writers.add(threading.get_ident()))

    assert (result.drawn, len(encoders), len(writers)) == (8, 4, 1)
    assert len({threading.get_ident(), *encoders, *writers}) == 6


def test_an_error_while_writing_ends_the_run_as_itself_and_keeps_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storyboard = story(tmp_path, panel("p01"), panel("p02"))
    full = DiskFull("no space is left")
    save = writer.Outputs.save

    def third_fails(self: Any, drawn: Drawn, *rest: Any) -> None:
        if drawn.candidate.name == "p02-c01":
            raise full
        save(self, drawn, *rest)

    monkeypatch.setattr(writer.Outputs, "save", third_fails)

    with pytest.raises(DiskFull) as stopped:
        draw(storyboard)

    assert stopped.value is full
    assert list(pictures(storyboard)) == ["p01/p01-c01.png", "p01/p01-c02.png"]
    assert [line["event"] for line in journal(storyboard)][2:] == ["done", "done", "ended"]
    assert manifest(storyboard)["runs"][0]["stopped"] == "no space is left"


@pytest.mark.parametrize("error", [MachineError("no more"), MemoryError("no more")])
def test_an_error_while_encoding_ends_the_run_as_itself_and_keeps_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    storyboard = story(tmp_path)

    def fail() -> None:
        raise error

    before_encoding(monkeypatch, {"p01-c02": fail})

    with pytest.raises(type(error)) as stopped:
        draw(storyboard)

    assert stopped.value is error
    assert list(pictures(storyboard)) == ["p01/p01-c01.png"]
    assert manifest(storyboard)["runs"][0]["stopped"].endswith("no more")


def test_an_error_while_reporting_ends_the_run_while_the_engine_still_draws(
    tmp_path: Path,
) -> None:
    storyboard = story(tmp_path)
    error = MachineError("standard output cannot be written")
    reported: list[object] = []

    def refuse_the_third(event: object) -> None:
        reported.append(event)
        if len(reported) == 3:
            raise error

    with pytest.raises(MachineError) as stopped:
        draw(storyboard, Endless(), report=refuse_the_third)

    assert stopped.value is error
    assert [line["text"] for line in journal(storyboard, "note")] == [
        f"remark {number}" for number in (1, 2, 3)
    ]


def test_a_reader_who_goes_away_interrupts_and_what_he_was_to_read_of_is_kept_and_counted(
    tmp_path: Path,
) -> None:
    storyboard = story(tmp_path)
    reported: list[object] = []

    def go_away_after_the_first(event: object) -> None:
        reported.append(event)
        if len(reported) == 2:
            raise KeyboardInterrupt

    result = draw(storyboard, report=go_away_after_the_first)

    assert (result.drawn, result.interrupted, len(reported)) == (2, True, 2)
    assert [line["event"] for line in journal(storyboard)][2:] == ["done", "done", "ended"]


def test_a_lost_device_is_told_although_what_waits_cannot_be_kept(tmp_path: Path) -> None:
    lost = DeviceLost("the GPU does not answer any more")
    gone = threading.Event()

    class Losing(Sketch):
        def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
            yield from super().draw(batch, upcoming)
            gone.set()
            raise lost

    def fail(event: object) -> None:
        wait_for(gone)
        raise DiskFull("no space is left")

    with pytest.raises(DeviceLost) as stopped:
        draw(story(tmp_path), Losing(), report=fail)

    assert stopped.value is lost


def test_an_engine_that_is_faster_than_the_disk_is_held_back(tmp_path: Path) -> None:
    engine = Endless()
    lead: list[int] = []

    def measure(event: object) -> None:
        wait_for(engine.ahead)
        lead.append(engine.said - len(lead))
        if len(lead) == 200:
            raise KeyboardInterrupt

    draw(story(tmp_path), engine, report=measure)

    assert max(lead) == WAITING + 1


def test_the_first_signal_keeps_all_that_was_handed_over_before_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=8))
    asked = threading.Event()

    class Interrupted(Sketch):
        def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
            yield from super().draw(batch, upcoming)
            if len(upcoming) == 5:
                os.kill(os.getpid(), signal.SIGINT)

    def tell(event: object) -> None:
        if event == Stopping():
            asked.set()

    before_encoding(monkeypatch, {"p01-c01": lambda: wait_for(asked)})

    result = draw(storyboard, Interrupted(), report=tell)

    assert (result.drawn, result.interrupted) == (3, True)
    assert [line["event"] for line in journal(storyboard)][2:] == ["done"] * 3 + ["ended"]
    assert len(manifest(storyboard)["candidates"]) == 3


def test_the_second_signal_drops_what_waits_and_finishes_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storyboard = story(tmp_path, panel("p01", candidates=8))
    second_is_half_written, dropped = threading.Event(), threading.Event()
    reported: list[Any] = []

    class Pool(ThreadPoolExecutor):
        """Tells when it is only waited for."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            if wait:
                dropped.set()
            super().shutdown(wait, cancel_futures=cancel_futures)

    class Interrupted(Sketch):
        def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
            yield from super().draw(batch, upcoming)
            if not upcoming:
                wait_for(second_is_half_written)
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)

    def between_file_and_line(folder: Path, path: Path, data: bytes) -> None:
        if path.stem == "p01-c02":
            second_is_half_written.set()
            wait_for(dropped)

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "ThreadPoolExecutor", Pool)
        patch.setattr(writer, "retire", between_file_and_line)
        result = draw(storyboard, Interrupted(), batch=4, report=reported.append)

    assert (result.drawn, result.interrupted, result.exit_code) == (2, True, 130)
    assert list(pictures(storyboard)) == ["p01/p01-c01.png", "p01/p01-c02.png"]
    assert [line["event"] for line in journal(storyboard)][2:] == ["done", "done", "ended"]
    assert [type(event) for event in reported] == [Drawn, Stopping, Drawn]
    assert draw(storyboard).drawn == 6
