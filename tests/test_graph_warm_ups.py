"""A bucket's first calls are eager and real work; then it is captured in the midst of a batch."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from recordings import (
    WIDE,
    Gpu,
    Toy,
    assert_predicts,
    bucket,
    draw,
    outside,
    places,
    step,
    task,
    told,
)

from comicgen.diffusion.graph_cache import WARM_UPS, GraphCache
from comicgen.diffusion.graph_task import Task
from comicgen.engine import GraphOptions


def replays(cache: GraphCache) -> dict[str, int]:
    """By bucket, of what is told now; nothing was given up."""
    notes, labels = told(cache)
    assert notes == []
    return {label.bucket: label.replays for label in labels}


def test_the_first_three_calls_are_the_networks_own(gpu: Gpu) -> None:
    cache, network = gpu.cache(), Toy()
    own = task(bucket(2, control=True), network)
    [predict] = cache.begin([own])
    captures = []
    for number in range(5):
        latents, timestep = step(own, number)
        predict(latents, timestep)
        captures.append(gpu.captures)
        if number < 3:
            assert network.seen[number] == places(own.inputs(latents, timestep))

    assert captures == [0, 0, 1, 1, 1]
    assert replays(cache) == {"2 x 64x64, control lineart": 2}


def test_a_capture_and_its_check_ask_the_network_for_no_result_again(gpu: Gpu) -> None:
    """Every call but the warm-ups lies in the graph's own buffers."""
    network = Toy()
    own = task(bucket(2), network)
    draw(gpu.cache(), own)

    assert all(seen == network.seen[WARM_UPS] for seen in network.seen[WARM_UPS:])


def test_calls_are_counted_over_batches(gpu: Gpu) -> None:
    cache, own, other = gpu.cache(), task(bucket(2)), task(bucket(1))
    for each in (own, other, own, other):
        draw(cache, each, steps=1)
    assert gpu.captures == 0

    draw(cache, own, steps=1)
    assert cache.keys == (own.key,)


ORDERS = ["ioioioioioio", "iiiiioooooioioi", "oooooiiiiioioio", "iioooooiiooiio", "oiiiiioooiooio"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("larger", [False, True])
def test_a_capture_leaves_the_inputs_of_the_batchs_other_graph_right(
    order: str, lanes: int, larger: bool, gpu: Gpu
) -> None:
    """Inside and outside a ControlNet's window, in buffers that a larger bucket made or not."""
    cache = gpu.cache()
    if larger:
        draw(cache, task(bucket(8, WIDE, True)))
    inside = task(bucket(lanes, control=True), seed=1)
    tasks = {"i": inside, "o": outside(inside)}
    predicts = dict(zip("io", cache.begin(tuple(tasks.values())), strict=True))
    for seed, place in enumerate(order):
        assert_predicts(predicts[place], tasks[place], seed)

    assert gpu.captures == 2 + larger
    assert set(cache.keys) >= {own.key for own in tasks.values()}
    found = replays(cache)
    assert [found[str(tasks[place].key)] for place in "io"] == [
        order.count(place) - WARM_UPS for place in "io"
    ]


@pytest.mark.parametrize("order", ["oooooiiiiiioioio", "iiiiioooooooioi"])
@pytest.mark.parametrize("failing", ["capture_errors", "replay_errors"])
def test_a_capture_that_fails_leaves_the_inputs_of_the_batchs_other_graph_right(
    order: str, failing: str, gpu: Gpu
) -> None:
    """In itself, or in its check while the buffers hold a mixture."""
    cache = gpu.cache()
    inside = task(bucket(2, control=True))
    tasks = {"i": inside, "o": outside(inside)}
    predicts = dict(zip("io", cache.begin(tuple(tasks.values())), strict=True))
    for seed, place in enumerate(order):
        if seed == 5:
            error = RuntimeError("no kernel")
            setattr(gpu, failing, [error] if failing == "capture_errors" else [None, error])
        assert_predicts(predicts[place], tasks[place], seed)

    assert cache.keys == (tasks[order[0]].key,)
    assert [note.partition(":")[0] for note in told(cache)[0]] == [str(tasks[order[5]].key)]


def test_what_is_captured_ahead_is_replayed_from_the_first_step(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2, control=True))
    cache.capture(own)
    assert replays(cache) == {str(own.key): 0}

    draw(cache, own, steps=2)
    assert (replays(cache), gpu.captures) == ({str(own.key): 2}, 1)


def test_settings_are_not_read_for_a_capture_ahead(gpu: Gpu) -> None:
    """Those of empty lanes would not show what a graph reads."""
    network = Toy()
    own = task(bucket(2), network)
    gpu.cache().capture(own)
    given = set(places(own.settings).values())

    assert len(network.seen) > WARM_UPS
    assert all(given.isdisjoint(seen.values()) for seen in network.seen)


def test_what_is_captured_or_refused_is_not_captured_ahead_again(gpu: Gpu) -> None:
    cache, network = gpu.cache(), Toy()
    good, bad = task(bucket(2), network), task(bucket(1), network)
    gpu.capture_errors = [None, RuntimeError("no kernel")]
    for own in (good, bad):
        cache.capture(own)
    calls = len(network.seen)
    for own in (good, bad):
        cache.capture(own)

    assert (len(network.seen), gpu.captures) == (calls, 2)


def test_without_a_stream_nothing_is_captured_ahead() -> None:
    network = Toy()
    GraphCache(None, None, GraphOptions(), "some", "plain").capture(task(bucket(2), network))

    assert network.seen == []


def moved(own: Task) -> Task:
    """The same with weights in another place, and of another size."""
    assert isinstance(own.network, Toy)
    return replace(own, network=replace(own.network, weight=own.network.weight * 2))


def test_weights_that_moved_are_captured_again(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2), Toy(weight=torch.ones(1)))
    draw(cache, own)
    draw(cache, moved(own))

    assert gpu.captures == 2
    assert len(set(gpu.pools)) == 2


def pairs(inside: Task) -> Sequence[tuple[Task, Task]]:
    """A batch in which weights moved: of both its tasks, and of either."""
    plain = outside(inside)
    return [(moved(inside), moved(plain)), (moved(inside), plain), (inside, moved(plain))]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_all_graphs_of_a_batch_are_captured_again_when_weights_moved(which: int, gpu: Gpu) -> None:
    """Also a graph that a task before the one whose weights moved would have used."""
    cache = gpu.cache()
    inside = task(bucket(2, control=True), Toy(weight=torch.ones(1)))
    draw(cache, inside, outside(inside))
    draw(cache, *pairs(inside)[which])

    assert set(cache.keys) == {inside.key, outside(inside).key}
    assert (gpu.captures, gpu.live) == (4, 2)


def test_weights_written_in_place_are_seen_without_a_capture(gpu: Gpu) -> None:
    cache, network = gpu.cache(), Toy(weight=torch.ones(1))
    draw(cache, task(bucket(2), network))
    network.weight.mul_(2)
    draw(cache, task(bucket(2), network))

    assert gpu.captures == 1
