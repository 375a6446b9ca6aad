"""The CUDA graphs of a run: captured when first needed, in one pool of memory, or given up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.graph import EVERY_STEP, Buffers, Function, Graph
from comicgen.diffusion.graph_check import check, compare
from comicgen.diffusion.graph_task import Network, Predict, Task
from comicgen.diffusion.memory import Memory, is_out_of_memory
from comicgen.diffusion.models import REFUSALS
from comicgen.diffusion.prepared import Named, invented
from comicgen.engine import GraphLabel, Note
from comicgen.plan import GraphKey

WARM_UPS = 3
HEADROOM = 1.2
"""A capture is expected to need so many times the peak of an eager call."""


class NoRoomError(RuntimeError):
    """There is not enough memory for a graph."""


@dataclass(frozen=True, slots=True)
class _Example:
    """One call of a task's network: its inputs and result, and the bytes that a graph may need."""

    task: Task
    inputs: Named
    result: Tensor
    needed: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a graph could not be captured, and whether that was for want of memory."""

    reason: str
    short: bool


@dataclass(slots=True)
class _Captured:
    """A graph, what its label says of it, and where the weights lay that it reads."""

    graph: Graph
    number: int
    weights: tuple[int, ...]
    seconds: float
    before: int
    after: int
    told: int = -1


@dataclass(slots=True)
class _Pool:
    """The memory that graphs share; `bytes` is what their captures took."""

    handle: Any = field(default_factory=torch.cuda.graph_pool_handle)
    bytes: int = 0


class GraphCache:
    """Captures, keeps, replays and releases the graphs of one device.

    It works on the stream that is current, and calls the networks themselves where there is no
    stream, and so no GPU, where graphs are not wanted, and for a bucket whose graph failed.
    """

    def __init__(
        self, stream: torch.cuda.Stream | None, memory: Memory | None, attention: str, debug: bool
    ) -> None:
        """`attention` names the kernels, for the labels; `debug` checks every replay."""
        self._stream = stream
        self._memory = memory
        self._attention = attention
        self._debug = debug
        self._captured: dict[GraphKey, _Captured] = {}
        self._refused: set[GraphKey] = set()
        self._buffers = Buffers()
        self._pool: _Pool | None = None
        self._captures = 0
        self._tasks: tuple[Task, ...] = ()
        self._warm_ups: Counter[GraphKey] = Counter()
        self._untold: list[Note | GraphLabel] = []
        self.seconds = 0.0
        self.spare = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is ever captured."""
        return self._stream is not None

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """What is captured now."""
        return tuple(self._captured)

    def begin(self, tasks: Sequence[Task]) -> list[Predict]:
        """Begin a batch: how to predict with each task, until the next batch begins.

        A bucket is called eagerly for the first times, which warms it up, then captured. Settings
        that several tasks have under one name are equal.
        """
        for task in tasks:
            self._check_weights(task)
        self._tasks = tuple(tasks)
        self._load()
        return [partial(self._predict, task) for task in tasks]

    def capture(self, task: Task) -> None:
        """Capture a task's bucket before it is needed, if it can be; its settings do not matter."""
        timestep = torch.empty(len(task.latents), device=task.latents.device)
        settings = invented(task.inputs(task.latents, timestep), seed=1)
        step = settings.pop("latents"), settings.pop("timestep")
        [predict] = self.begin([replace(task, settings=settings)])
        while self._is_wanted(task.key):
            predict(*step)

    def clear(self) -> None:
        """Release all graphs, their pool and their buffers; a batch must begin anew."""
        self._release()
        self._tasks = ()
        self._buffers = Buffers()
        if self._memory:
            self._memory.give_back()

    def tell(self) -> Iterator[Note | GraphLabel]:
        """What was not told yet: graphs given up, and the label of each that was replayed since."""
        for captured in self._captured.values():
            self._tell_label(captured)
        yield from self._untold
        self._untold.clear()

    def _is_wanted(self, key: GraphKey) -> bool:
        eager = self._stream is None or key in self._refused
        return not eager and key not in self._captured

    def _load(self) -> None:
        """Make what the running batch does not change fresh in all its graphs."""
        for each in self._captured.values():
            each.graph.forget()
        for task in self._tasks:
            if captured := self._captured.get(task.key):
                captured.graph.load(task.settings)

    def _predict(self, task: Task, latents: Tensor, timestep: Tensor) -> Tensor:
        inputs = task.inputs(latents, timestep)
        if captured := self._captured.get(task.key):
            try:
                return self._replay(captured.graph, task, inputs)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self._refuse(task.key, "replayed", str(error).partition("\n")[0])
        if self._is_wanted(task.key):
            return self._warm_up(task, inputs)
        return task.network.call(inputs)

    def _replay(self, graph: Graph, task: Task, inputs: Named) -> Tensor:
        graph.load({name: inputs[name] for name in EVERY_STEP})
        result = graph.replay()
        if self._debug:
            compare(result, task.network.call(inputs))
        return result

    def _warm_up(self, task: Task, inputs: Named) -> Tensor:
        """Call the network; the last of these calls shows the capture what to give, and need."""
        assert self._memory
        with self._memory.measured() as taken:
            result = task.network.call(inputs)
        self._warm_ups[task.key] += 1
        if self._warm_ups[task.key] >= WARM_UPS:
            assert self._stream
            self._stream.synchronize()  # or capturing would seem to take what the calls still take
            started = perf_counter()
            self._capture(_Example(task, inputs, result, int(taken.bytes * HEADROOM)))
            self._load()
            self.seconds += perf_counter() - started
        return result

    def _capture(self, example: _Example) -> None:
        """Capture, in the memory of the other graphs if need be, but not of the running batch's."""
        key = example.task.key
        mates = {task.key for task in self._tasks} - {key}
        refusal = self._attempt(example)
        if refusal and refusal.short and self._captured and mates.isdisjoint(self._captured):
            self._release()
            refusal = self._attempt(example)
        if refusal:
            self._refuse(key, "captured", refusal.reason)

    def _attempt(self, example: _Example) -> _Refusal | None:
        """Why there is no graph, without the error, whose traceback would hold its memory."""
        try:
            self._captured[example.task.key] = self._try_capture(example)
        except REFUSALS as error:
            return _Refusal(str(error).partition("\n")[0], is_out_of_memory(error))
        return None

    def _try_capture(self, example: _Example) -> _Captured:
        assert self._memory
        network, started = example.task.network, perf_counter()
        pool = self._pool or _Pool()
        self._check_room(example.needed, pool)
        before = self._memory.held
        try:
            graph = self._checked(example, pool)
        finally:
            after = self._memory.held
            pool.bytes += after - before
        self._captures += 1
        seconds = perf_counter() - started
        return _Captured(graph, self._captures, _places(network), seconds, before, after)

    def _checked(self, example: _Example, pool: _Pool) -> Graph:
        """A graph that was captured on other inputs than the example's, and gives its result."""
        function = example.task.network.call
        others = invented(example.inputs, seed=2)
        graph = Graph(str(example.task.key), self._buffers, others)
        graph.load(others)
        self._record(graph, function, pool)
        check(graph, function, example.inputs, others, example.result)
        graph.replays = 0
        return graph

    def _record(self, graph: Graph, function: Function, pool: _Pool) -> None:
        """Capture into the pool, which is not used again where that fails.

        Torch's allocator of pinned memory may list it as being captured into for ever.
        """
        assert self._stream
        self._pool = None
        graph.capture(function, pool.handle, self._stream)
        self._pool = pool

    def _check_room(self, needed: int, pool: _Pool) -> None:
        """A graph needs what a call needs, and has what the graphs of the pool took before it.

        Releasing those would give it nothing; the graphs of an abandoned pool it would.
        """
        assert self._memory
        room = self._memory.free - self.spare + pool.bytes
        if needed > room:
            reason = f"{needed / 2**30:.1f} GiB needed, {room / 2**30:.1f} free"
            raise NoRoomError(reason) if pool.bytes else torch.OutOfMemoryError(reason)

    def _check_weights(self, task: Task) -> None:
        """A graph whose weights have moved would read what lies there now."""
        captured = self._captured.get(task.key)
        if captured and captured.weights != _places(task.network):
            self.clear()

    def _refuse(self, key: GraphKey, what: str, reason: str) -> None:
        """From now on this bucket is drawn eagerly."""
        self._untold.append(Note(f"{key}: drawn without a graph, it cannot be {what} ({reason})"))
        self._refused.add(key)
        if failed := self._captured.pop(key, None):
            self._tell_label(failed)
        if not self._captured:  # the memory of its pool goes with the last graph
            self._pool = None

    def _release(self) -> None:
        for captured in self._captured.values():
            self._tell_label(captured)
        self._captured.clear()
        self._pool = None

    def _tell_label(self, captured: _Captured) -> None:
        graph = captured.graph
        if graph.replays == captured.told:
            return
        captured.told = graph.replays
        label = GraphLabel(
            number=captured.number,
            bucket=graph.key,
            seconds=captured.seconds,
            before=captured.before,
            after=captured.after,
            replays=graph.replays,
            attention=self._attention,
        )
        self._untold.append(label)


def _places(network: Network) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in network.weights())
