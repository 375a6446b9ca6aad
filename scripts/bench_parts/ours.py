"""comicgen's arm: its engine, and all that `comicgen render` does with it."""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from bench_parts.setting import Setting
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.engine import Drawn, Engine, Event, Failed, GraphLabel, GraphOptions, Note
from comicgen.environment import default_batch
from comicgen.outputs import Outputs
from comicgen.outputs.keeping import ENCODERS
from comicgen.outputs.png_text import encoding
from comicgen.plan import Batch, Kernels, Memory, Plan, plan
from comicgen.render import render
from comicgen.storyboard import Storyboard, load

_NOTHING = Memory()


class DrawingError(Exception):
    """The engine gave up a picture; says why."""


def open_engine(storyboard: Storyboard, setting: Setting, graphs: bool = True) -> DiffusionEngine:
    """The engine with the storyboard's model loaded."""
    gc.collect()  # an engine that is gone may hold its model until then
    options = GraphOptions(enabled=graphs)
    return DiffusionEngine.open(storyboard.model, setting.environment, options)


def one_batch(storyboard: Storyboard) -> Batch:
    """All candidates of a storyboard of one panel side by side, however a plan would part them."""
    planned = plan(storyboard, Memory())
    candidates = tuple(each.candidate for each in planned.drawn)
    like = planned.batches[0]
    return replace(like, bucket=replace(like.bucket, batch=len(candidates)), lanes=candidates)


def planned(storyboard: Storyboard, setting: Setting, memory: Memory = _NOTHING) -> Plan:
    """What `comicgen render` would draw, where nothing was measured."""
    here = setting.environment
    return plan(
        storyboard,
        memory,
        batch=default_batch(here),
        captured=here.on_gpu,
        environment=here.label,
        kernels=Kernels(here.kind, plain_environment=here.drawing("plain").label),
    )


def draw(engine: Engine, batch: Batch) -> list[Image.Image]:
    """The pictures of a batch.

    Raises:
        DrawingError: one of them failed.
    """
    pictures = {}
    for event in engine.draw(batch, ()):
        match event:
            case Failed():
                raise DrawingError(event.reason)
            case Drawn():
                pictures[event.candidate.name] = event.image
    return [pictures[candidate.name] for candidate in batch.candidates]


def draw_to_files(engine: Engine, batch: Batch, storyboard: Storyboard, folder: Path) -> None:
    """Draw a batch into PNG files, which are encoded beside the drawing as `render` does it.

    Raises:
        DrawingError: a picture failed.
    """
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), ENCODERS)) as pool:
        waiting = []
        for event in engine.draw(batch, ()):
            if isinstance(event, Failed):
                raise DrawingError(event.reason)
            if isinstance(event, Drawn):
                made = encoding(event.image, event.candidate, storyboard.model)
                stripes = [pool.submit(made.deflate, first) for first in made.stripes]
                waiting.append((event.candidate, made, stripes))
        for candidate, made, stripes in waiting:
            file = folder / f"{candidate.name}.png"
            file.write_bytes(made.join(stripe.result() for stripe in stripes))


class Watched:
    """An engine that passes on what another says, and remembers it without the pictures."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seconds = 0.0
        self._batches: list[str] = []
        self._graphs: dict[int, GraphLabel] = {}
        self._notes: set[str] = set()

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        self._batches.append(str(batch.bucket))
        events = self._engine.draw(batch, upcoming)
        while (event := self._next(events)) is not None:
            match event:
                case Failed():
                    raise DrawingError(event.reason)
                case GraphLabel():
                    self._graphs[event.number] = event
                case Note():
                    self._notes.add(event.text)
                case Drawn():
                    self._notes.update(event.notes)
            yield event

    def rendered(self, seconds: float) -> "Rendered":
        """All that was drawn until now, in so many seconds."""
        graphs = tuple(self._graphs[number] for number in sorted(self._graphs))
        return Rendered(
            seconds, self._seconds, graphs, tuple(self._batches), tuple(sorted(self._notes))
        )

    def _next(self, events: Iterator[Event]) -> Event | None:
        begun = time.perf_counter()
        event = next(events, None)
        self._seconds += time.perf_counter() - begun
        return event


@dataclass(frozen=True)
class Rendered:
    """Seconds of a whole story; `engine` are those in which the loop waited for the engine."""

    seconds: float
    engine: float
    graphs: tuple[GraphLabel, ...]
    batches: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.seconds:8.3f} s: drawing {self.engine - self.captures:.3f}, "
            f"captures {self.captures:.3f}, rest {self.seconds - self.engine:.3f}"
        )

    @property
    def captures(self) -> float:
        """Seconds of all captures."""
        return sum(label.seconds for label in self.graphs)

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3),
            "drawing": round(self.engine - self.captures, 3),
            "captures": round(self.captures, 3),
            "rest": round(self.seconds - self.engine, 3),
            "graphs": [
                {"bucket": label.bucket, "seconds": label.seconds, "replays": label.replays}
                for label in self.graphs
            ],
            "batches": dict(Counter(self.batches)),
            "notes": list(self.notes),
        }


def render_story(file: Path, setting: Setting, output: str) -> Rendered:
    """What `comicgen render` does after its model is loaded, from the YAML to the manifest.

    Captures are a part of it, and so is reading ControlNet and LoRAs.

    Raises:
        DrawingError: a picture failed.
    """
    engine = Watched(open_engine(load(file), setting))
    begun = time.perf_counter()
    storyboard = load(file)
    with Outputs.open(setting.folder / output, storyboard, setting.environment) as outputs:
        todo = planned(storyboard, setting, outputs.memory)
        result = render(todo, engine, outputs, lambda event: None)
    seconds = time.perf_counter() - begun
    if result.interrupted:
        raise KeyboardInterrupt
    return engine.rendered(seconds)
