"""Capturing a graph: in memory that there is, on invented inputs, checked against the work."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.graph import EVERY_STEP, Buffers, Function, Graph
from comicgen.diffusion.graph_check import check
from comicgen.diffusion.graph_task import Network, Task
from comicgen.diffusion.memory import Memory, is_out_of_memory
from comicgen.diffusion.models import REFUSALS
from comicgen.diffusion.prepared import Named, invented

HEADROOM = 1.2
"""A capture is expected to need so many times the peak of an eager call."""


class NoRoomError(RuntimeError):
    """There is not enough memory for a graph."""


@dataclass(frozen=True, slots=True)
class Example:
    """One call of a task's network: its inputs and result, the seconds and bytes that it took."""

    task: Task
    inputs: Named
    result: Tensor
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a graph could not be captured, and whether that was for want of memory."""

    reason: str
    short: bool


@dataclass(slots=True)
class Captured:
    """A graph, what its label says of it, and where the weights lay that it reads.

    `eager` and `replayed` are the seconds of one call without it and with it.
    """

    graph: Graph
    number: int
    weights: tuple[int, ...]
    seconds: float
    before: int
    after: int
    eager: float
    replayed: float
    told: int = -1


@dataclass(slots=True)
class _Pool:
    """The memory that graphs share; `bytes` is what their captures took."""

    handle: Any = field(default_factory=torch.cuda.graph_pool_handle)
    bytes: int = 0


class Capturer:
    """Captures the graphs of one device into one pool, on its stream.

    `spare` bytes are left to others.
    """

    def __init__(self, stream: torch.cuda.Stream, memory: Memory) -> None:
        self.spare = 0
        self._stream = stream
        self._memory = memory
        self._pool: _Pool | None = None
        self._captures = 0

    def call(self, task: Task, inputs: Named) -> Example:
        """Call a task's network, and see what that takes."""
        with self._memory.measured() as taken:
            seconds, result = self._timed(lambda: task.network.call(inputs))
        return Example(task, inputs, result, seconds, taken.bytes)

    def capture(self, example: Example, buffers: Buffers) -> Captured | Refusal:
        """The graph of a task that was called; its inputs lie in the buffers.

        It does not tell the error itself, whose traceback would hold its memory.
        """
        try:
            return self._capture(example, buffers)
        except REFUSALS as error:
            return Refusal(str(error).partition("\n")[0], is_out_of_memory(error))

    def release(self) -> None:
        """Begin another pool, as no graph is left in this one."""
        self._pool = None

    def _capture(self, example: Example, buffers: Buffers) -> Captured:
        network, started = example.task.network, perf_counter()
        pool = self._pool or _Pool()
        self._check_room(int(example.bytes * HEADROOM), pool)
        before = self._memory.held
        try:
            graph = self._checked(example, buffers, pool)
        finally:
            after = self._memory.held
            pool.bytes += after - before
        self._captures += 1
        seconds = perf_counter() - started
        return Captured(
            graph,
            self._captures,
            places(network),
            seconds,
            before,
            after,
            example.seconds,
            self._seconds_to_replay(graph, example),
        )

    def _seconds_to_replay(self, graph: Graph, example: Example) -> float:
        graph.load(example.inputs)
        step = {name: example.inputs[name] for name in EVERY_STEP}
        seconds, _ = self._timed(lambda: graph.call(step))
        graph.replays = 0
        return seconds

    def _checked(self, example: Example, buffers: Buffers, pool: _Pool) -> Graph:
        """A graph that was captured on other inputs than the example's, and gives its result."""
        function = example.task.network.call
        others = invented(example.inputs, seed=2)
        graph = Graph(str(example.task.key), buffers, others)
        graph.load(others)
        self._record(graph, function, pool)
        check(graph, function, example.inputs, others, example.result)
        return graph

    def _record(self, graph: Graph, function: Function, pool: _Pool) -> None:
        """Capture into the pool, which is not used again where that fails.

        Torch's allocator of pinned memory may list it as being captured into for ever.
        """
        self._pool = None
        graph.capture(function, pool.handle, self._stream)
        self._pool = pool

    def _check_room(self, needed: int, pool: _Pool) -> None:
        """A graph needs what a call needs, and has what the graphs of the pool took before it.

        Releasing those would give it nothing; the graphs of an abandoned pool it would.
        """
        room = self._memory.free - self.spare + pool.bytes
        if needed > room:
            reason = f"{needed / 2**30:.1f} GiB needed, {room / 2**30:.1f} free"
            raise NoRoomError(reason) if pool.bytes else torch.OutOfMemoryError(reason)

    def _timed(self, call: Callable[[], Tensor]) -> tuple[float, Tensor]:
        """Seconds from an idle device to an idle device, and what was called for."""
        self._stream.synchronize()
        started = perf_counter()
        result = call()
        self._stream.synchronize()
        return perf_counter() - started, result


def places(network: Network) -> tuple[int, ...]:
    """Where the weights lie."""
    return tuple(weight.data_ptr() for weight in network.weights())
