"""On a GPU a replayed graph gives the bits of the networks themselves, at SDXL's full size."""

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import figures
import full_size
import pytest
import torch
from bench_parts.memory import BATCHES, SIZES, alone_and_all
from bench_parts.replays import Desk
from torch import Tensor

from comicgen.diffusion.fused import fuse
from comicgen.diffusion.prepared import Named
from comicgen.engine import GraphLabel, Note
from comicgen.sizes import Size

pytestmark = pytest.mark.gpu

SMALL = Size(512, 384)


@pytest.fixture(scope="module")
def networks() -> tuple[Any, Any]:
    """Fused; `test_gpu_fused` replays plain ones too."""
    unet = full_size.unet(torch.device("cuda", 0))
    controlnet = full_size.controlnet(unet).half()
    unet.half()
    for network in (unet, controlnet):
        fuse(network)
    return unet, controlnet


@pytest.fixture
def desk(networks: tuple[Any, Any]) -> Iterator[Desk]:
    """With a cache of its own, on its stream."""
    gc.collect()
    desk = Desk.beside(*networks)
    with desk.working():
        yield desk
    desk.cache.clear()


def assert_same_bits(one: Tensor, other: Tensor) -> None:
    assert torch.isfinite(one).all()
    assert torch.equal(one, other), f"largest difference {(one - other).abs().max():.1e}"


def test_five_sizes_in_four_batches_with_and_without_control_in_one_pool(desk: Desk) -> None:
    """Largest first; then once more in another order, every graph after every other."""
    kinds = [
        (size, batch, controlled)
        for batch in BATCHES
        for controlled in (True, False)
        for size in SIZES
    ]
    for kind in [*kinds, *sorted(kinds, key=lambda kind: (kind[0].width * 7 % 11, kind[1]))]:
        task = desk.task(*kind, seed=len(desk.cache.keys))
        assert_same_bits(desk.replayed(task), desk.eager(task))

    assert len(desk.cache.keys) == len(kinds) == 40
    assert desk.replays() == 80


@pytest.mark.parametrize(
    "name",
    [
        "text",
        "pooled",
        "time_ids",
        "guidance",
        "control_text",
        "control_hint",
        "control_weight",
    ],
)
def test_another_input_gives_another_result_and_the_networks(name: str, desk: Desk) -> None:
    first, other = (desk.task(SMALL, 4, True, seed) for seed in (1, 2))
    changed = replace(first, settings={**first.settings, name: other.settings[name]})
    before = desk.replayed(first)

    assert not torch.equal(desk.replayed(changed), before)
    assert_same_bits(desk.replayed(changed), desk.eager(changed))
    assert_same_bits(desk.replayed(first), before)


def test_a_window_alternates_between_two_graphs_of_one_batch(desk: Desk) -> None:
    """Each is captured in the middle of it, after three calls, and leaves the other's inputs."""
    inside = desk.task(SMALL, 2, True)
    outside = desk.task(SMALL, 2, False)
    outside = replace(outside, settings={name: inside.settings[name] for name in outside.settings})
    predict = desk.cache.begin([inside, outside])
    latents = inside.latents
    moments = iter(range(900, 0, -50))

    for within in (False, True, True, False, True, False, True, False, True, True, False):
        task, moment = (inside if within else outside), next(moments)
        drawn = predict[not within](latents, desk.timestep(task, moment))
        assert_same_bits(drawn, desk.eager(replace(task, latents=latents), moment))
        latents = drawn
    assert desk.replays() == 5


def test_weights_written_in_place_are_seen_by_a_live_graph(desk: Desk) -> None:
    task = desk.task(SMALL, 4, False)
    before = desk.replayed(task)
    weight = desk.unet.down_blocks[1].attentions[0].transformer_blocks[0].attn1.to_k.weight
    pristine = weight.clone()

    weight.mul_(1.5)
    assert not torch.equal(desk.replayed(task), before)
    assert_same_bits(desk.replayed(task), desk.eager(task))
    weight.copy_(pristine)
    assert_same_bits(desk.replayed(task), before)
    assert len(desk.cache.keys) == 1


def test_weights_that_moved_are_captured_again(desk: Desk) -> None:
    task = desk.task(SMALL, 1, False)
    desk.replayed(task)
    pristine = desk.unet.conv_in.weight
    with torch.inference_mode(False):
        desk.unet.conv_in.weight = torch.nn.Parameter(pristine * 1.5, requires_grad=False)
    try:
        assert_same_bits(desk.replayed(task), desk.eager(task))
        assert_same_bits(desk.replayed(task), desk.eager(task))
    finally:
        desk.unet.conv_in.weight = pristine
    assert [label.number for label in desk.cache.tell() if isinstance(label, GraphLabel)] == [1, 2]


def test_other_threads_may_copy_and_allocate_during_a_capture(desk: Desk) -> None:
    ended, errors = threading.Event(), []

    def copy() -> None:
        stream: Any = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not ended.is_set():
                try:
                    sent = torch.rand(1000, 1000).pin_memory().to("cuda", non_blocking=True)
                    assert torch.isfinite(sent.cpu()).all()
                except RuntimeError as error:
                    errors.append(error)
                    return

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        for batch in BATCHES:
            task = desk.task(SMALL, batch, True)
            assert_same_bits(desk.replayed(task), desk.eager(task))
    finally:
        ended.set()
        thread.join()

    assert errors == []
    assert len(desk.cache.keys) == len(BATCHES)


class Waiting:
    """A network that asks for a number on the host, which no capture can."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.weights = network.weights

    def call(self, inputs: Named) -> Tensor:
        result: Tensor = self._network.call(inputs)
        return result * (1.0 if result.sum().item() else 2.0)


def test_a_capture_that_fails_costs_its_bucket_only_the_graph(desk: Desk) -> None:
    good, bad = desk.task(SMALL, 2, False), desk.task(SMALL, 4, False)
    bad = replace(bad, network=Waiting(bad.network))
    desk.replayed(good)

    for _ in range(2):
        assert_same_bits(desk.replayed(bad), desk.eager(bad))
    assert_same_bits(desk.replayed(good), desk.eager(good))
    later = desk.task(SMALL, 1, True)
    assert_same_bits(desk.replayed(later), desk.eager(later))
    notes = [event.text for event in desk.cache.tell() if isinstance(event, Note)]
    assert [note.partition(" (")[0] for note in notes] == [
        "4 x 512x384: drawn without a graph, it cannot be captured"
    ]


def test_a_capture_that_fails_holds_no_memory(desk: Desk) -> None:
    """And what is not used goes back to the device, as before it."""
    good, bad = desk.task(SMALL, 2, False), desk.task(Size(1024, 1024), 4, True)
    desk.replayed(good)
    desk.eager(bad)
    desk.cache.clear()
    before = desk.memory.held

    desk.replayed(good)
    desk.replayed(replace(bad, network=Waiting(bad.network)))
    assert desk.cache.keys == (good.key,)
    desk.cache.clear()

    assert desk.memory.held == before


class Deaf:
    """A network that keeps what it was first given of one input: a copy made on the host."""

    def __init__(self, network: Any, name: str) -> None:
        self._network = network
        self._name = name
        self._kept: dict[torch.Size, Tensor] = {}
        self.weights = network.weights

    def call(self, inputs: Named) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept = self._kept[inputs[self._name].shape]
            return self._network.call({**inputs, self._name: kept})
        self._kept[inputs[self._name].shape] = inputs[self._name].clone()
        return self._network.call(inputs)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", ["timestep", "time_ids", "control_weight"])
def test_a_graph_that_does_not_read_an_input_is_found_out(
    name: str, batch: int, desk: Desk
) -> None:
    task = desk.task(SMALL, batch, True)
    task = replace(task, network=Deaf(task.network, name))

    assert_same_bits(desk.replayed(task), desk.eager(task))
    [note] = desk.cache.tell()
    assert isinstance(note, Note)
    assert "cannot be captured" in note.text


@pytest.mark.parametrize("controlled", [False, True])
def test_twenty_graphs_take_little_more_memory_than_the_largest(
    controlled: bool, desk: Desk
) -> None:
    desk.replayed(desk.task(SMALL, 1, controlled))
    desk.cache.clear()
    before = desk.memory.held
    alone, together = alone_and_all(desk, controlled)
    assert len(desk.cache.keys) == 20
    desk.cache.clear()

    figures.record(
        f"graph-memory-{'with' if controlled else 'without'}-controlnet",
        {"largest alone": alone.gib(), "all twenty": together.gib(), "unit": "GiB"},
    )
    assert together.torch <= 1.2 * alone.torch
    assert together.device <= 1.2 * alone.device
    assert desk.memory.held == before


def test_memory_that_is_short_holds_one_graph_after_the_other(desk: Desk) -> None:
    """A hog leaves room for one graph of its kind, not for its larger neighbour beside it."""
    small, large = desk.task(Size(768, 768), 2, False), desk.task(Size(1024, 1024), 4, False)
    desk.cache.capture(large)
    desk.cache.clear()
    free = desk.memory.free
    hog = torch.empty(free - 5 * 2**30, dtype=torch.uint8, device="cuda")
    try:
        desk.cache.capture(small)
        assert_same_bits(desk.replayed(large), desk.eager(large))
        assert_same_bits(desk.replayed(small), desk.eager(small))
    finally:
        del hog
    assert not [event for event in desk.cache.tell() if isinstance(event, Note)]
