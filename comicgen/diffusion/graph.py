"""One CUDA graph: a function of named tensors, captured once and replayed.

Its inputs lie in buffers that all graphs of a cache share, since only one batch is drawn at a
time: a buffer is as large as the largest needed until then, and says what it holds.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.prepared import Named

Function = Callable[[Named], Tensor]
"""Tensors of k * B rows each, by name, k for each lane in turn -> a tensor of B rows."""

EVERY_STEP = ("latents", "timestep")
"""Inputs that a step changes; all others stay the same over a batch."""


class StaleInputError(AssertionError):
    """A graph would replay what was loaded for something else: a mistake of who calls it."""


@dataclass(slots=True)
class Buffer:
    """Memory for one named input; `holds` is the shape that is fresh in it, None if none is."""

    storage: Tensor
    holds: torch.Size | None = None


class Buffers:
    """The memory of all inputs of a cache's graphs, by name."""

    def __init__(self) -> None:
        self._newest: dict[str, Buffer] = {}

    def take(self, name: str, like: Tensor) -> tuple[Buffer, Tensor]:
        """A buffer that can hold a tensor like this one, and the view of it that does.

        One that is too small is replaced, and stays with the graphs that read it.
        """
        size, buffer = like.numel(), self._newest.get(name)
        if buffer is None or buffer.storage.numel() < size or buffer.storage.dtype != like.dtype:
            buffer = Buffer(torch.empty(size, dtype=like.dtype, device=like.device))
            self._newest[name] = buffer
        return buffer, buffer.storage[:size].view(like.shape)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a capture gives: how to replay it, and where each replay leaves its result."""

    replay: Callable[[], None]
    output: Tensor


def record(function: Function, inputs: Named, pool: Any, stream: torch.cuda.Stream) -> Recording:
    """Record the kernels that the function launches, with their memory from the pool.

    The function has run before with these shapes on this stream. Other threads may copy and
    allocate meanwhile.

    Raises:
        RuntimeError: the function waits for the device, or does what no graph can hold.
    """
    graph = torch.cuda.CUDAGraph()
    place = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    cause: BaseException | None = None
    try:
        with _uncollected(), place:
            try:
                output = function(inputs)
            except BaseException as error:  # noqa: BLE001 - raised below
                cause = error
    except RuntimeError:  # from beginning a capture, or ending one that was spoilt
        _abandon(graph, pool, stream)
        if cause is None:
            raise
    try:
        if cause is not None:
            raise cause
    finally:
        del cause  # whose traceback holds this frame, and so the memory of what failed
    return Recording(graph.replay, output)


class Graph:
    """A function captured for inputs of fixed shapes, and where its inputs and output lie."""

    def __init__(self, key: str, buffers: Buffers, like: Named) -> None:
        """Take the places of the inputs; `capture` comes next."""
        self.key = key
        self.replays = 0
        self._buffers: dict[str, Buffer] = {}
        self.inputs: dict[str, Tensor] = {}
        for name, value in like.items():
            self._buffers[name], self.inputs[name] = buffers.take(name, value)
        self._recording: Recording | None = None

    def capture(self, function: Function, pool: Any, stream: torch.cuda.Stream) -> None:
        """Record the function on these places, whose contents do not matter; see `record`."""
        self._recording = record(function, self.inputs, pool, stream)

    def load(self, values: Named) -> None:
        """Copy inputs into their places, without waiting.

        Raises:
            ValueError: an input is unknown, or its shape or dtype is not the captured one.
        """
        for name, value in values.items():
            if name not in self.inputs:
                raise ValueError(f"{self.key}: {name} is no input of the captured graph")
            own = self.inputs[name]
            if (value.shape, value.dtype) != (own.shape, own.dtype):
                raise ValueError(
                    f"{self.key}: {name} is {tuple(value.shape)} {value.dtype}, and the graph "
                    f"was captured with {tuple(own.shape)} {own.dtype}"
                )
            own.copy_(value, non_blocking=True)
            self._buffers[name].holds = own.shape

    def call(self, inputs: Named) -> Tensor:
        """The function of these inputs, by loading and replaying."""
        self.load(inputs)
        return self.replay()

    def forget(self) -> None:
        """A batch begins: nothing that was loaded counts any more."""
        for buffer in self._buffers.values():
            buffer.holds = None

    def replay(self) -> Tensor:
        """The function of what was loaded: a tensor of its own, which no later replay changes.

        Raises:
            StaleInputError: an input is not fresh: latents and timestep since the last replay,
                the others since the batch began.
        """
        assert self._recording is not None
        stale = [name for name, own in self.inputs.items() if not self._is_fresh(name, own)]
        if stale:
            raise StaleInputError(f"{self.key}: {', '.join(stale)} not loaded before the replay")
        self._recording.replay()
        self.replays += 1
        for name in EVERY_STEP:
            self._buffers[name].holds = None
        return self._recording.output.clone()

    def _is_fresh(self, name: str, own: Tensor) -> bool:
        return self._buffers[name].holds == own.shape


_ABANDONED: list[torch.cuda.CUDAGraph] = []
"""Kept, because torch's allocator of pinned memory goes on asking each whether it is capturing."""


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> None:
    """Tell torch's allocator that a capture is over which CUDA refused to end.

    `CUDAGraph.capture_end` leaves without doing so. As long as a capture seems to go on, the
    allocator gives no cached memory back to the device, and never what the capture took.
    """
    try:
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
    except RuntimeError:  # it knows: the capture never began, or ended as a graph that cannot run
        return
    torch._C._cuda_releasePool(stream.device_index, pool)
    _ABANDONED.append(graph)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which could free another graph's memory during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
