"""Where memory is short, graphs make room for each other, and for what is decoded."""

from collections.abc import Sequence

import pytest
import torch
from recordings import Gpu, Toy, assert_predicts, bucket, draw, inputs, outside, step, task, told

from comicgen.diffusion.graph_cache import WARM_UPS, GraphCache


@pytest.fixture
def gpu(gpu: Gpu) -> Gpu:
    """1000 bytes, of which a call takes 400 and a graph 480 at most."""
    gpu.total, gpu.call = 1000, 400
    return gpu


def notes(cache: GraphCache) -> Sequence[str]:
    return told(cache)[0]


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("400 bytes are too many")


def test_graphs_lie_over_each_other_in_one_pool(gpu: Gpu) -> None:
    cache = gpu.cache()
    for lanes in (8, 4, 2, 1):
        draw(cache, task(bucket(lanes)))

    assert (len(cache.keys), gpu.held, len(set(gpu.pools))) == (4, 400, 1)


def test_a_larger_graph_may_lie_over_those_before_it(gpu: Gpu) -> None:
    cache = gpu.cache()
    draw(cache, task(bucket(4)))
    gpu.call = 800
    draw(cache, task(bucket(8)))

    assert (len(cache.keys), gpu.held, notes(cache)) == (2, 800, [])


def test_a_graph_that_has_no_room_is_done_without(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.total, gpu.call = 1 << 30, 2 << 30
    for _ in range(2):
        draw(cache, task(bucket(8)))

    assert gpu.captures == 0
    assert notes(cache) == [
        "8 x 64x64: drawn without a graph, it cannot be captured (2.4 GiB needed, 1.0 free)"
    ]


@pytest.mark.parametrize(("total", "captures"), [(479, 0), (480, 1)])
def test_a_graph_needs_a_fifth_more_than_a_call(total: int, captures: int, gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.total = total
    draw(cache, task(bucket(8)))

    assert (gpu.captures, len(notes(cache))) == (captures, 1 - captures)


def test_smaller_buckets_are_captured_where_a_larger_one_was_not(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.call = 2000
    draw(cache, task(bucket(8)))
    gpu.call = 400
    draw(cache, task(bucket(4)))

    assert cache.keys == (task(bucket(4)).key,)


def test_room_is_spared_for_decoding(gpu: Gpu) -> None:
    cache = gpu.cache()
    cache.spare(521)
    draw(cache, task(bucket(8)))
    assert gpu.captures == 0

    cache = gpu.cache()
    cache.spare(520)
    draw(cache, task(bucket(4)))
    assert gpu.captures == 1


def test_a_bucket_that_has_no_room_costs_the_others_nothing(gpu: Gpu) -> None:
    """Releasing graphs that lie in its own pool would not make room for it."""
    cache = gpu.cache()
    draw(cache, task(bucket(4)))
    gpu.call = 2000
    draw(cache, task(bucket(8)))
    gpu.call = 400
    for lanes in (4, 2):
        draw(cache, task(bucket(lanes)))

    assert (gpu.captures, gpu.held, len(set(gpu.pools))) == (2, 400, 1)


def test_a_bucket_that_has_no_room_leaves_the_running_batchs_other_graph_alone(gpu: Gpu) -> None:
    cache, inside = gpu.cache(), task(bucket(2, control=True))
    draw(cache, outside(inside))
    gpu.call = 2000
    draw(cache, inside, outside(inside))

    assert cache.keys == (outside(inside).key,)
    assert [label.replays for label in told(cache)[1]] == [7]


def test_a_pool_in_which_a_capture_failed_is_not_used_again(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [None, RuntimeError("no kernel")]
    gpu.call = 300
    for lanes in (4, 2, 1):
        draw(cache, task(bucket(lanes)))

    lost, *_, pool = gpu.pools
    assert gpu.pools == [lost, lost, pool]
    assert lost is not pool
    assert cache.keys == (task(bucket(4)).key, task(bucket(1)).key)
    draw(cache, task(bucket(4)), steps=2)


def test_what_an_abandoned_pool_holds_is_released_for_a_graph_that_needs_it(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [None, RuntimeError("no kernel")]
    draw(cache, task(bucket(4)))
    draw(cache, task(bucket(2)))
    gpu.call = 501
    draw(cache, task(bucket(8)))

    assert cache.keys == (task(bucket(8)).key,)
    assert gpu.captures == 3


def test_a_check_that_fails_costs_the_pool_nothing(gpu: Gpu) -> None:
    cache = gpu.cache()
    draw(cache, task(bucket(4)))
    gpu.shift = 1.0
    draw(cache, task(bucket(2)))
    gpu.shift = 0.0
    draw(cache, task(bucket(1)))

    assert cache.keys == (task(bucket(4)).key, task(bucket(1)).key)
    assert (gpu.captures, len(set(gpu.pools)), gpu.held) == (3, 1, 400)


def test_a_capture_that_runs_out_of_memory_is_tried_again_in_the_room_of_others(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [None, out_of_memory()]
    draw(cache, task(bucket(4)))
    draw(cache, task(bucket(8)))

    assert (cache.keys, gpu.captures, gpu.live) == ((task(bucket(8)).key,), 3, 1)
    assert gpu.pools[0] is gpu.pools[1] is not gpu.pools[2]
    told_notes, labels = told(cache)
    assert told_notes == []
    assert [(each.bucket, each.replays, each.before, each.after) for each in labels] == [
        ("4 x 64x64", 2, 0, 400),
        ("8 x 64x64", 2, 0, 400),
    ]


def test_a_check_that_runs_out_of_memory_is_tried_again_in_the_room_of_others(gpu: Gpu) -> None:
    cache = gpu.cache()
    draw(cache, task(bucket(4)))
    gpu.replay_errors = [out_of_memory()]
    draw(cache, task(bucket(8)))

    assert (cache.keys, gpu.captures, notes(cache)) == ((task(bucket(8)).key,), 3, [])


def test_a_function_that_runs_out_of_memory_in_a_capture_is_too(gpu: Gpu) -> None:
    cache = gpu.cache()
    draw(cache, task(bucket(4)))
    hungry = task(bucket(8), Toy(errors=[*[None] * WARM_UPS, out_of_memory()]))
    draw(cache, hungry)

    assert (cache.keys, gpu.captures, notes(cache)) == ((hungry.key,), 3, [])


def test_what_runs_out_of_memory_alone_is_tried_once(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [out_of_memory()]
    draw(cache, task(bucket(8)))

    assert gpu.captures == 1
    assert notes(cache) == [
        "8 x 64x64: drawn without a graph, it cannot be captured (400 bytes are too many)"
    ]


def test_what_runs_out_of_memory_twice_is_not_tried_again(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [None, out_of_memory(), out_of_memory()]
    draw(cache, task(bucket(4)))
    for _ in range(2):
        draw(cache, task(bucket(8)))

    assert (cache.keys, gpu.captures, len(notes(cache))) == ((), 3, 1)


def test_a_graph_of_the_running_batch_is_not_released_for_the_other(gpu: Gpu) -> None:
    """Two that do not fit together would be captured in turn, batch after batch."""
    cache, inside = gpu.cache(), task(bucket(2, control=True))
    gpu.apart, gpu.call = True, 600
    for _ in range(4):
        draw(cache, inside, outside(inside))

    assert (cache.keys, gpu.captures) == ((inside.key,), 2)
    assert [note.partition(":")[0] for note in notes(cache)] == ["2 x 64x64"]


def test_neither_is_it_together_with_graphs_of_other_batches(gpu: Gpu) -> None:
    cache, inside = gpu.cache(), task(bucket(2, control=True))
    draw(cache, task(bucket(4)))
    draw(cache, outside(inside))
    gpu.capture_errors = [out_of_memory()]
    draw(cache, inside, outside(inside))

    assert cache.keys == (task(bucket(4)).key, outside(inside).key)


def test_buckets_that_do_not_fit_beside_each_other_take_turns(gpu: Gpu) -> None:
    cache = gpu.cache()
    gpu.apart, gpu.call = True, 600
    for lanes in (4, 2, 4):
        draw(cache, task(bucket(lanes)))
        assert (cache.keys, gpu.held) == ((task(bucket(lanes)).key,), 600)

    assert notes(cache) == []


@pytest.mark.parametrize("at", range(WARM_UPS))
def test_a_warm_up_that_runs_out_of_memory_is_its_callers_to_mend(at: int, gpu: Gpu) -> None:
    """It counts for nothing: the bucket is warmed up and captured later."""
    cache = gpu.cache()
    own = task(bucket(2), Toy(errors=[*[None] * at, out_of_memory()]))
    [predict] = cache.begin([own])
    for number in range(at):
        assert_predicts(predict, own, number)
    with pytest.raises(torch.OutOfMemoryError):
        predict(*step(own))
    assert gpu.captures == 0

    draw(cache, own, steps=WARM_UPS - at)
    assert (cache.keys, notes(cache)) == ((own.key,), [])


def test_a_replay_that_runs_out_of_memory_is_its_callers_to_mend(gpu: Gpu) -> None:
    """The caller releases all graphs and draws the batch again, with a graph."""
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    gpu.replay_errors = [out_of_memory()]
    [predict] = cache.begin([own])
    with pytest.raises(torch.OutOfMemoryError):
        predict(*step(own))
    assert cache.keys == (own.key,)

    cache.clear()
    draw(cache, own, steps=2)
    assert (gpu.captures, gpu.live, notes(cache)) == (2, 1, [])


def test_a_replay_that_ran_out_of_memory_may_be_tried_again(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    gpu.replay_errors = [out_of_memory()]
    [predict] = cache.begin([own])
    with pytest.raises(torch.OutOfMemoryError):
        predict(*step(own))

    assert torch.equal(predict(*step(own)), own.network.call(inputs(own)))
    assert gpu.captures == 1
