"""CUDA graphs without CUDA: what is recorded is called again, in a memory of known size."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor

from comicgen.diffusion import graph, graph_capture
from comicgen.diffusion.graph import Function, Recording
from comicgen.diffusion.graph_cache import WARM_UPS, GraphCache
from comicgen.diffusion.graph_task import Predict, Task
from comicgen.diffusion.memory import Taken
from comicgen.diffusion.prepared import Named, Prepared, invented
from comicgen.engine import GraphLabel, GraphOptions, Note
from comicgen.plan import Bucket, GraphKey
from comicgen.sizes import Size

STREAM: Any = SimpleNamespace(synchronize=lambda: None, device_index=0)
"""Stands for a CUDA stream."""


def again(function: Function, inputs: Named) -> Recording:
    """A recording in which nothing was computed yet, and that each replay calls again."""
    output = function(inputs).clone().fill_(float("nan"))

    def replay() -> None:
        output.copy_(function(inputs))

    return Recording(replay, output)


@dataclass(eq=False)
class Gpu:
    """As much of a GPU as graphs see: `record`, pools and `Memory`.

    It has `total` bytes, and a call takes `call` of them at its height. The graphs of a pool lie
    over each other, or `apart`. `capture_errors` and `replay_errors` are raised by what comes
    next; None lets one pass. `shift` is what every replay adds to its result by mistake.
    """

    total: int = 1 << 40
    call: int = 0
    apart: bool = False
    shift: float = 0.0
    capture_errors: list[Exception | None] = field(default_factory=list)
    replay_errors: list[Exception | None] = field(default_factory=list)
    pools: list[object] = field(default_factory=list)
    _live: WeakKeyDictionary[Any, tuple[object, int]] = field(default_factory=WeakKeyDictionary)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand where CUDA would be from now on."""
        pool = graph_capture._Pool
        patch.setattr(graph, "record", self.record)
        patch.setattr(graph_capture, "_Pool", lambda: pool(handle=object()))

    def cache(self, debug: bool = False) -> GraphCache:
        memory: Any = self
        return GraphCache(STREAM, memory, GraphOptions(debug=debug), "some", "plain")

    def record(self, function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        assert stream is STREAM
        self.pools.append(pool)
        _raise_next(self.capture_errors)
        if self.apart and self.held + self.call > self.total:
            raise torch.OutOfMemoryError(f"{self.call} bytes are too many")
        recording = again(function, inputs)

        def replay() -> None:
            _raise_next(self.replay_errors)
            recording.replay()
            recording.output.add_(self.shift)

        self._live[replay] = pool, self.call
        return Recording(replay, recording.output)

    @property
    def captures(self) -> int:
        """How many were tried."""
        return len(self.pools)

    @property
    def live(self) -> int:
        """How many graphs there are."""
        return len(self._live)

    @property
    def held(self) -> int:
        sizes: dict[object, list[int]] = {}
        for pool, size in self._live.values():
            sizes.setdefault(pool, []).append(size)
        return sum(map(sum if self.apart else max, sizes.values()))

    @property
    def free(self) -> int:
        return self.total - self.held

    def give_back(self) -> None:
        """Nothing is held that is not used."""

    @contextmanager
    def measured(self) -> Iterator[Taken]:
        taken = Taken()
        yield taken
        taken.bytes = self.call


def _raise_next(errors: list[Exception | None]) -> None:
    error = errors.pop(0) if errors else None
    try:
        if error:
            raise error
    finally:
        del error  # by which it would keep its own frame


ONE = torch.ones(1)
"""The weights of all toy networks that have none of their own."""


@dataclass(eq=False)
class Toy:
    """A network in which each input moves each lane of the result, by about `strength` of it.

    It does not read what is in `deaf`. `seen` keeps where the inputs of each call lay. `errors`
    are raised by the next calls; None lets one pass.
    """

    strength: float = 1.0
    deaf: tuple[str, ...] = ()
    weight: Tensor = ONE
    seen: list[dict[str, int]] = field(default_factory=list)
    errors: list[Exception | None] = field(default_factory=list)

    def call(self, inputs: Named) -> Tensor:
        _raise_next(self.errors)
        self.seen.append(places(inputs))
        return self.value(inputs)

    def value(self, inputs: Named) -> Tensor:
        """What a call gives, without calling it."""
        lanes = len(inputs["latents"])
        total = torch.zeros_like(inputs["latents"])
        for place, name in enumerate(sorted(set(inputs) - set(self.deaf)), start=1):
            value = place * inputs[name].float().sin()
            rows = value.reshape(lanes, -1).mean(1)
            total += value if name == "latents" else rows.view(lanes, 1, 1, 1)
        return self.weight * (1 + self.strength * total)

    def weights(self) -> Iterator[Tensor]:
        yield self.weight


def places(inputs: Named) -> dict[str, int]:
    """Where inputs lie."""
    return {name: value.data_ptr() for name, value in inputs.items()}


WIDE, SQUARE = Size(96, 64), Size(64, 64)


def bucket(lanes: int = 1, size: Size = SQUARE, control: bool = False) -> Bucket:
    return Bucket(lanes, size, 1, int(control), guided=True)


def task(own: Bucket, network: Toy | None = None, seed: int = 0) -> Task:
    """A toy network to be called in a bucket, with invented settings."""
    rows, size = 2 * own.batch, own.size
    like = Prepared(
        text=torch.empty(rows, 5, 4, dtype=torch.float16),
        pooled=torch.empty(rows, 3, dtype=torch.float16),
        time_ids=torch.empty(rows, 6),
        guidance=torch.empty(own.batch, 1, 1, 1),
        control_text=torch.empty(rows, 5, 4, dtype=torch.float16),
        control_hint=torch.empty(rows, 3, size.height, size.width),
        control_weight=torch.empty(rows, 1, 1, 1),
    )
    key = GraphKey(own, "lineart", "lineart") if own.controls else GraphKey(own)
    latents = torch.empty(own.batch, 4, size.height // 8, size.width // 8)
    settings = invented(like.named(), seed)
    if not own.controls:
        settings = Prepared.of(settings).without_control().named()
    return Task(key, network or Toy(), settings, latents)


def outside(inside: Task) -> Task:
    """The same batch outside its ControlNet's window."""
    plain = Prepared.of(inside.settings).without_control().named()
    key = GraphKey(replace(inside.key.bucket, controls=0))
    return replace(inside, key=key, settings=plain)


def step(own: Task, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Latents and timestep of a step."""
    timestep = torch.empty(own.key.bucket.batch)
    made = invented({"latents": own.latents, "timestep": timestep}, 100 + seed)
    return made["latents"], made["timestep"]


def inputs(own: Task, seed: int = 0) -> dict[str, Tensor]:
    """All inputs of a step."""
    return own.inputs(*step(own, seed))


def assert_predicts(predict: Predict, own: Task, seed: int = 0) -> None:
    """The prediction has the bits of the network's own."""
    assert isinstance(own.network, Toy)
    assert torch.equal(predict(*step(own, seed)), own.network.value(inputs(own, seed)))


def draw(cache: GraphCache, *tasks: Task, steps: int = WARM_UPS + 2) -> None:
    """A batch of these tasks, each for so many steps in turn, with the network's own results.

    A new bucket is warmed up, captured and replayed twice.
    """
    predicts = cache.begin(tasks)
    for number in range(steps):
        for predict, own in zip(predicts, tasks, strict=True):
            assert_predicts(predict, own, seed=number)


def told(cache: GraphCache) -> tuple[list[str], list[GraphLabel]]:
    """Notes, and labels."""
    events = list(cache.tell())
    notes = [event.text for event in events if isinstance(event, Note)]
    return notes, [event for event in events if isinstance(event, GraphLabel)]
