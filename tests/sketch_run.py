"""Storyboards drawn with the stub engine, here or in a process that is killed on the way."""

import functools
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from comicgen.engine import Engine, Event
from comicgen.environment import Environment
from comicgen.errors import Place
from comicgen.outputs import Outputs, folder_for, read_memory
from comicgen.plan import Batch, Bucket, Candidate, Memory, every_candidate, plan
from comicgen.render import Result, render
from comicgen.sizes import Size
from comicgen.sketch import Sketch
from comicgen.storyboard import Model, Panel, Storyboard

ENVIRONMENT = Environment("cpu", "a test's CPU", 2, "fp32", "2.0", "0.3", "5.0")
POCKET = Model("pocket", Path("/models/pocket"), hashlib.sha256(b"pocket").hexdigest())

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", "comicgen.render", "comicgen.sketch"])


def panel(id: str, **changes: Any) -> Panel:
    settings: dict[str, Any] = {
        "prompt": f"{id}, a lighthouse",
        "negative": None,
        "size": Size(48, 32),
        "steps": 20,
        "sampler": "euler",
        "guidance": 7.0,
        "candidates": 2,
        "seed": None,
        "loras": (),
        "control": None,
        "title": None,
        "caption": None,
        "place": Place(Path("story.yaml"), 1, 1),
    }
    return Panel(id=id, **{**settings, **changes})


def story(folder: Path, *panels: Panel, name: str = "story.yaml") -> Storyboard:
    """A storyboard in `folder`, of three panels with two candidates each unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.touch()
    panels = panels or (panel("p01"), panel("p02", size=Size(32, 32)), panel("p03"))
    return Storyboard(path, None, POCKET, 0, None, panels)


def alone(candidate: Candidate) -> Batch:
    """The batch of one candidate."""
    bucket = Bucket(1, candidate.panel.size, 1, 0, guided=True)
    return Batch(bucket, (), candidate.panel.sampler, candidate.panel.steps, None, (candidate,))


def candidates(storyboard: Storyboard) -> list[Candidate]:
    return every_candidate(storyboard, Memory())


def opened(storyboard: Storyboard) -> Any:
    return Outputs.open(folder_for(storyboard.path), storyboard, ENVIRONMENT)


def draw(
    storyboard: Storyboard,
    engine: Engine | None = None,
    *,
    batch: int = 1,
    report: Callable[[Any], object] = lambda event: None,
) -> Result:
    """Draw what is not done, as `comicgen render` does."""
    with opened(storyboard) as outputs:
        todo = plan(storyboard, outputs.memory, batch=batch, environment=ENVIRONMENT.label)
        return render(todo, engine or Sketch(), outputs, report)


def memory_of(storyboard: Storyboard) -> Memory:
    return read_memory(folder_for(storyboard.path), storyboard)


def states(storyboard: Storyboard) -> dict[str, str]:
    return {name: past.state for name, past in memory_of(storyboard).candidates.items()}


def journal(storyboard: Storyboard, event: str | None = None) -> list[dict[str, Any]]:
    """Lines of the journal, of one event if given; a torn last line is left out, checksums too."""
    text = (folder_for(storyboard.path) / "journal.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    for line in lines:
        del line["crc"]
    return [line for line in lines if event in (None, line["event"])]


def manifest(storyboard: Storyboard) -> dict[str, Any]:
    text = (folder_for(storyboard.path) / "manifest.json").read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def pictures(storyboard: Storyboard) -> dict[str, bytes]:
    """Every PNG below the output folder, by its path there."""
    folder = folder_for(storyboard.path)
    found = sorted(folder.rglob("*.png"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def draw_and_die(storyboard: Storyboard, call: int, *, half: bool = False) -> int:
    """Draw in another process that kills itself at its so-manieth write, rename or fsync.

    Returns the exit code: -9, or 0 if there were not so many calls. With `half`, a write writes
    half of its bytes first, and nothing dies in calls of another kind.
    """
    return _exit_code(_draw_until, storyboard, call, half)


def draw_until_killed(
    storyboard: Storyboard, pictures: int, moment: Callable[[], bool]
) -> int | None:
    """Draw in another process that waits after so many pictures; kill it at a moment before.

    Returns the exit code, which is -9.
    """
    process = PROCESSES.Process(target=draw, args=(storyboard, Waiting(pictures)))
    process.start()
    while process.is_alive() and not moment():
        pass
    process.kill()
    process.join()
    return process.exitcode


class Waiting(Sketch):
    """Draws so many pictures, and then waits for ever."""

    def __init__(self, pictures: int) -> None:
        self._left = pictures

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        for event in super().draw(batch, upcoming):
            if not self._left:
                signal.pause()
            self._left -= 1
            yield event


def _exit_code(target: Callable[..., object], *args: object) -> int:
    process = PROCESSES.Process(target=target, args=args)
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    return code


def _draw_until(storyboard: Storyboard, call: int, half: bool) -> None:
    with Strike(*((_die_half_way, call, ("write",)) if half else (_die, call))):
        draw(storyboard)


WRITE_POINTS = ("write", "fsync", "replace", "rename", "ftruncate", "mkdir")


class Strike:
    """Within it, the so-manieth call of some functions of `os` is answered by `answer`.

    `answer` receives the original function and its arguments; `came` tells whether it was called.
    """

    def __init__(
        self, answer: Callable[..., Any], call: int, names: Sequence[str] = WRITE_POINTS
    ) -> None:
        self._answer = answer
        self._left = call
        self._originals = {name: getattr(os, name) for name in names}

    @property
    def came(self) -> bool:
        return self._left <= 0

    def __enter__(self) -> Self:
        for name, original in self._originals.items():
            setattr(os, name, functools.partial(self._call, original))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)

    def _call(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._left -= 1
        return (self._answer if self._left == 0 else _as_ever)(original, *args, **options)


def _as_ever(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return original(*args, **options)


def _die(original: Any, *args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_half_way(original: Any, descriptor: int, data: bytes) -> None:
    original(descriptor, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
