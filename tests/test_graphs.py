"""One graph: what it refuses, what it keeps, and how it is recorded."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from recordings import STREAM, WIDE, bucket, inputs, outside, task
from torch import Tensor

from comicgen.diffusion import graph
from comicgen.diffusion.graph import Buffers, Graph, StaleInputError, record
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.prepared import Named

pytestmark = pytest.mark.usefixtures("gpu")


def captured(own: Task, buffers: Buffers | None = None) -> Graph:
    made = Graph(str(own.key), buffers or Buffers(), inputs(own))
    made.capture(own.network.call, object(), STREAM)
    return made


def expected(own: Task, values: Named) -> Tensor:
    return own.network.call(values)


def test_a_replay_is_the_function_of_what_was_loaded() -> None:
    own = task(bucket(2, control=True))
    made, values = captured(own), inputs(own)
    made.load(values)

    assert torch.equal(made.replay(), expected(own, values))
    assert made.replays == 1


@pytest.mark.parametrize("name", ["latents", "text", "guidance", "control_hint"])
def test_another_shape_is_refused_with_bucket_and_input(name: str) -> None:
    own = task(bucket(2, control=True))
    made, values = captured(own), inputs(own)

    with pytest.raises(ValueError, match=rf"2 x 64x64, control lineart: {name} is \(.*\(.*\)"):
        made.load({name: values[name][:1]})


@pytest.mark.parametrize("name", ["latents", "pooled", "control_weight"])
def test_another_dtype_is_refused_with_bucket_and_input(name: str) -> None:
    own = task(bucket(control=True))
    made, values = captured(own), inputs(own)

    with pytest.raises(ValueError, match=rf"1 x 64x64, control lineart: {name} is .*float64"):
        made.load({name: values[name].double()})


def test_an_unknown_input_is_refused() -> None:
    made, values = captured(task(bucket())), inputs(task(bucket(control=True)))

    with pytest.raises(ValueError, match="1 x 64x64: control_weight is no input"):
        made.load({"control_weight": values["control_weight"]})


def test_what_is_refused_leaves_the_other_inputs_as_they_were() -> None:
    own = task(bucket())
    made, values = captured(own), inputs(own)
    made.load(values)
    with pytest.raises(ValueError, match="time_ids"):
        made.load({"time_ids": values["time_ids"].long()})

    assert torch.equal(made.replay(), expected(own, values))


@pytest.mark.parametrize("name", ["latents", "timestep"])
def test_a_step_input_is_stale_after_a_replay(name: str) -> None:
    own = task(bucket())
    made, values = captured(own), inputs(own)
    made.load(values)
    made.replay()
    made.load({each: values[each] for each in {"latents", "timestep"} - {name}})

    with pytest.raises(StaleInputError, match=f"1 x 64x64: {name} not loaded"):
        made.replay()


@pytest.mark.parametrize("name", inputs(task(bucket(control=True))))
def test_every_input_is_stale_when_a_batch_begins(name: str) -> None:
    own, buffers = task(bucket(control=True)), Buffers()
    made, values = captured(own, buffers), inputs(own)
    made.load(values)
    made.forget()
    made.load({each: values[each] for each in values if each != name})

    with pytest.raises(StaleInputError, match=f"control lineart: {name} not loaded"):
        made.replay()


def test_what_another_graph_has_overwritten_is_stale() -> None:
    buffers = Buffers()
    large, small = task(bucket(2)), task(bucket(1))
    one, other = captured(large, buffers), captured(small, buffers)
    one.load(inputs(large))
    other.load(inputs(small))
    other.replay()
    one.load({name: inputs(large)[name] for name in ("latents", "timestep")})

    with pytest.raises(StaleInputError, match="2 x 64x64: text, pooled, time_ids, guidance not"):
        one.replay()


def test_later_replays_do_not_change_a_result() -> None:
    own = task(bucket())
    made = captured(own)
    results = []
    for seed in range(3):
        made.load(inputs(own, seed))
        results.append(made.replay())

    for seed, result in enumerate(results):
        assert torch.equal(result, expected(own, inputs(own, seed)))


def test_graphs_with_and_without_control_alternate_in_one_batch() -> None:
    buffers = Buffers()
    inside = task(bucket(2, control=True))
    tasks = (inside, outside(inside))
    graphs = [captured(each, buffers) for each in tasks]
    for made, own in zip(graphs, tasks, strict=True):
        made.load(own.settings)

    for number in (0, 1, 1, 0, 0, 1):
        values = inputs(tasks[number], seed=number)
        graphs[number].load({name: values[name] for name in ("latents", "timestep")})
        assert torch.equal(graphs[number].replay(), expected(tasks[number], values))


def test_a_buffer_is_shared_and_grows_only_for_a_larger_input() -> None:
    buffers = Buffers()
    (_, small), (_, equal), (_, large), (_, smaller) = (
        buffers.take("latents", torch.empty(lanes, 4, 8, 8)) for lanes in (2, 2, 4, 1)
    )

    assert equal.data_ptr() == small.data_ptr() != large.data_ptr() == smaller.data_ptr()
    assert smaller.shape == (1, 4, 8, 8)


def test_a_buffer_of_another_dtype_or_name_is_another() -> None:
    buffers = Buffers()
    own = torch.empty(4)
    places = {
        buffers.take(name, like)[1].data_ptr()
        for name, like in [("a", own), ("b", own), ("b", own.double()), ("b", own.int())]
    }

    assert len(places) == 4


def test_a_graph_goes_on_in_a_buffer_that_became_too_small_for_others() -> None:
    buffers = Buffers()
    small, large = task(bucket(1)), task(bucket(4, WIDE))
    graphs = {own.key: (captured(own, buffers), own) for own in (small, large)}

    for key in (small.key, large.key, small.key):
        made, own = graphs[key]
        made.load(inputs(own))
        assert torch.equal(made.replay(), expected(own, inputs(own)))


class Cuda:
    """What `record` asks of torch, and whether garbage was collected meanwhile.

    A capture may end with an error, before or after it told the allocator that it is over.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, ending: str | None = None, told: bool = False
    ) -> None:
        self.asked: dict[str, Any] = {}
        self.underway: list[object] = []
        self.released: list[object] = []
        self.abandoned: list[object] = []
        self.collecting: list[bool] = []
        self.replays = 0
        self._ending = ending
        self._told = told
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        patch.setattr(torch.cuda, "graph", self.graph)
        patch.setattr(graph, "_ABANDONED", self.abandoned)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end)
        patch.setattr(torch._C, "_cuda_releasePool", self.release)

    def end(self, device: int, pool: object) -> None:
        if (device, pool) not in self.underway:
            raise RuntimeError("not currently recording to mempool_id")
        self.underway.remove((device, pool))

    def release(self, device: int, pool: object) -> None:
        self.released.append((device, pool))

    def replay(self) -> None:
        self.replays += 1

    @contextmanager
    def graph(self, own: object, **asked: Any) -> Iterator[None]:
        assert own is self
        self.asked = asked
        self.collecting.append(gc.isenabled())
        allocation = asked["stream"].device_index, asked["pool"]
        self.underway.append(allocation)
        try:
            yield
        finally:
            self.collecting.append(gc.isenabled())
            if self._told or not self._ending:
                self.end(*allocation)
            if self._ending:
                raise RuntimeError(self._ending)


def test_a_capture_leaves_other_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, pool, given = Cuda(monkeypatch), object(), {"latents": torch.rand(1, 4, 8, 8)}
    recording = record(lambda values: values["latents"] + 1, given, pool, STREAM)
    recording.replay()

    assert cuda.asked == {"pool": pool, "stream": STREAM, "capture_error_mode": "thread_local"}
    assert cuda.replays == 1
    assert torch.equal(recording.output, given["latents"] + 1)


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is collected before a capture."""
    wanted: bool = request.param
    former = gc.isenabled()
    _collect(wanted)
    yield wanted
    _collect(former)


def _collect(wanted: bool) -> None:
    if wanted:
        gc.enable()
    else:
        gc.disable()


def test_no_garbage_is_collected_during_a_capture(
    collecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(monkeypatch)
    record(lambda values: values["x"], {"x": torch.rand(1)}, object(), STREAM)

    assert cuda.collecting == [False, False]
    assert gc.isenabled() == collecting


def test_garbage_is_collected_again_after_a_capture_that_failed(
    collecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cuda(monkeypatch)
    with pytest.raises(KeyError, match="x"):
        record(lambda values: values["x"], {}, object(), STREAM)

    assert gc.isenabled() == collecting


SPOILT = [
    RuntimeError("operation not permitted when stream is capturing"),
    torch.OutOfMemoryError("400 bytes are too many"),
    ValueError("no kernel"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("ending", [None, "failed due to a previous error"])
@pytest.mark.parametrize("error", SPOILT, ids=lambda error: type(error).__name__)
def test_a_capture_that_was_spoilt_tells_why_also_when_it_cannot_be_ended(
    error: BaseException, ending: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA ends a capture that was spoilt with an error that names no cause."""

    def spoilt(_: Named) -> Tensor:
        raise error

    Cuda(monkeypatch, ending)
    with pytest.raises(type(error)) as raised:
        record(spoilt, {}, object(), STREAM)

    assert raised.value is error


def test_a_capture_that_only_its_end_refuses_tells_that(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch, ending="no such pool")

    with pytest.raises(RuntimeError, match="no such pool"):
        record(lambda values: values["x"], {"x": torch.rand(1)}, object(), STREAM)


@pytest.mark.parametrize("told", [False, True])
def test_a_capture_that_was_not_ended_is_over_for_the_allocator(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pool is released if nobody else does, as the graph itself does once it has ended."""
    cuda, pool = Cuda(monkeypatch, "failed due to a previous error", told), object()

    with pytest.raises(RuntimeError, match="previous error"):
        record(lambda values: values["x"], {"x": torch.rand(1)}, pool, STREAM)

    assert cuda.underway == []
    assert cuda.released == ([] if told else [(STREAM.device_index, pool)])
    assert (cuda in cuda.abandoned) is not told


@pytest.mark.parametrize("ending", [None, "failed due to a previous error"])
def test_a_capture_that_failed_holds_no_memory(
    ending: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even until garbage is collected: another capture may need it at once."""
    left: list[ReferenceType[Tensor]] = []

    def spoilt(values: Named) -> Tensor:
        half_done = values["x"] + 1
        left.append(ref(half_done))
        raise torch.OutOfMemoryError("400 bytes are too many")

    Cuda(monkeypatch, ending)
    gc.disable()
    try:
        with suppress(torch.OutOfMemoryError):
            record(spoilt, {"x": torch.rand(1)}, object(), STREAM)
        assert [each() for each in left] == [None]
    finally:
        gc.enable()
