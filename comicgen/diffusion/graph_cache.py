"""The CUDA graphs of a run: captured when first needed, in one pool of memory, or given up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from comicgen.diffusion.graph import EVERY_STEP, Buffers, Graph
from comicgen.diffusion.graph_capture import Captured, Capturer, Example, Refusal, places
from comicgen.diffusion.graph_check import compare
from comicgen.diffusion.graph_task import Predict, Task
from comicgen.diffusion.memory import Memory, is_out_of_memory
from comicgen.diffusion.prepared import Named, invented
from comicgen.engine import GraphLabel, GraphOptions, Measured, Note
from comicgen.plan import GraphKey

WARM_UPS = 3

HELD = 3
"""Times that the settings of a batch lie in memory: a batch's own, the graph's, the next one's."""


class GraphCache:
    """Captures, keeps, replays and releases the graphs of one device.

    It works on the stream that is current, and calls the networks themselves where there is no
    stream, and so no GPU, where graphs are not wanted, and for a bucket whose graph failed.
    """

    def __init__(
        self,
        stream: torch.cuda.Stream | None,
        memory: Memory | None,
        options: GraphOptions,
        attention: str,
        numerics: str,
    ) -> None:
        """`attention` and `numerics` name the kernels, for what is told."""
        self._memory = memory
        self._capturer = None
        if stream is not None and memory is not None and options.enabled:
            self._capturer = Capturer(stream, memory)
        self._options = options
        self._attention = attention
        self._numerics = numerics
        self._captured: dict[GraphKey, Captured] = {}
        self._refused: set[GraphKey] = set()
        self._called: set[GraphKey] = set()
        self._buffers = Buffers()
        self._tasks: tuple[Task, ...] = ()
        self._warm_ups: Counter[GraphKey] = Counter()
        self._untold: list[Note | GraphLabel | Measured] = []
        self.seconds = 0.0

    def spare(self, needed: int) -> None:
        """Leave so many bytes to what is done between the batches."""
        if self._capturer is not None:
            self._capturer.spare = max(self._capturer.spare, needed)

    @property
    def enabled(self) -> bool:
        """Whether anything is ever captured."""
        return self._capturer is not None

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """What is captured now."""
        return tuple(self._captured)

    def wants(self, key: GraphKey) -> bool:
        """Whether a bucket is to be captured and is not yet."""
        eager = not self.enabled or key in self._refused or key in self._options.without
        return not eager and key not in self._captured

    def is_ready(self, key: GraphKey) -> bool:
        """Whether a bucket is drawn with nothing to be captured for it, or tried."""
        return key in self._captured or (key in self._called and not self.wants(key))

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
        while self.wants(task.key):
            predict(*step)

    def clear(self) -> None:
        """Release all graphs, their pool and their buffers; a batch must begin anew."""
        self._release()
        self._tasks = ()
        self._buffers = Buffers()
        if self._memory:
            self._memory.give_back()

    def tell(self) -> Iterator[Note | GraphLabel | Measured]:
        """What was not told yet: graphs given up, the label of each replayed since, its costs."""
        for captured in self._captured.values():
            self._tell_label(captured)
        yield from self._untold
        self._untold.clear()

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
        self._called.add(task.key)
        if self.wants(task.key):
            return self._warm_up(task, inputs)
        return task.network.call(inputs)

    def _replay(self, graph: Graph, task: Task, inputs: Named) -> Tensor:
        graph.load({name: inputs[name] for name in EVERY_STEP})
        result = graph.replay()
        if self._options.debug:
            compare(result, task.network.call(inputs))
        return result

    def _warm_up(self, task: Task, inputs: Named) -> Tensor:
        """Call the network; the last of these calls shows the capture what to give, and need."""
        self._warm_ups[task.key] += 1
        if self._warm_ups[task.key] < WARM_UPS:
            return task.network.call(inputs)
        assert self._capturer is not None
        example = self._capturer.call(task, inputs)
        started = perf_counter()
        self._capture(self._capturer, example)
        self._load()
        self.seconds += perf_counter() - started
        return example.result

    def _capture(self, capturer: Capturer, example: Example) -> None:
        """Capture, in the memory of the other graphs if need be, but not of the running batch's."""
        key = example.task.key
        mates = {task.key for task in self._tasks} - {key}
        found = capturer.capture(example, self._buffers)
        short = isinstance(found, Refusal) and found.short
        if short and self._captured and mates.isdisjoint(self._captured):
            self._release()
            found = capturer.capture(example, self._buffers)
        if isinstance(found, Refusal):
            self._refuse(key, "captured", found.reason)
            return
        self._captured[key] = found
        settings = sum(each.nbytes for each in example.task.settings.values())
        self._untold.append(
            Measured(
                self._numerics,
                key.bucket,
                eager=found.eager,
                replayed=found.replayed,
                first_use=found.seconds,
                bytes=example.bytes + HELD * settings,
            )
        )

    def _check_weights(self, task: Task) -> None:
        """A graph whose weights have moved would read what lies there now."""
        captured = self._captured.get(task.key)
        if captured and captured.weights != places(task.network):
            self.clear()

    def _refuse(self, key: GraphKey, what: str, reason: str) -> None:
        """From now on this bucket is drawn eagerly."""
        self._untold.append(Note(f"{key}: drawn without a graph, it cannot be {what} ({reason})"))
        self._refused.add(key)
        if failed := self._captured.pop(key, None):
            self._tell_label(failed)
        if not self._captured:  # the memory of its pool goes with the last graph
            self._drop_pool()

    def _release(self) -> None:
        for captured in self._captured.values():
            self._tell_label(captured)
        self._captured.clear()
        self._drop_pool()

    def _drop_pool(self) -> None:
        if self._capturer is not None:
            self._capturer.release()

    def _tell_label(self, captured: Captured) -> None:
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
