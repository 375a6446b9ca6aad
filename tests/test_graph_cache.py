"""Graphs are captured once for each bucket, kept, replayed, and given up with a reason."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch
from recordings import (
    SQUARE,
    WIDE,
    Gpu,
    bucket,
    draw,
    inputs,
    outside,
    step,
    task,
    told,
)
from torch import Tensor

from comicgen.diffusion import graph
from comicgen.diffusion.graph import Function, Recording, StaleInputError
from comicgen.diffusion.graph_cache import HELD, GraphCache
from comicgen.diffusion.prepared import Named
from comicgen.engine import GraphOptions, Measured


def test_a_bucket_is_captured_once(gpu: Gpu) -> None:
    cache = gpu.cache()
    own = task(bucket(2))
    for seed in range(3):
        draw(cache, replace(own, settings=task(bucket(2), seed=seed).settings))

    assert gpu.captures == 1
    assert cache.keys == (own.key,)
    assert cache.seconds > 0


def test_buckets_with_and_without_control_of_every_size_interleave(gpu: Gpu) -> None:
    cache = gpu.cache(debug=True)
    insides = [task(bucket(lanes, size, True)) for lanes in (4, 1) for size in (WIDE, SQUARE)]
    for inside in (*insides, *insides[::-1], *insides):
        draw(cache, inside, outside(inside), steps=2)

    assert gpu.captures == len(cache.keys) == 8
    assert set(gpu.pools) == {gpu.pools[0]}
    notes, labels = told(cache)
    assert notes == []
    assert [label.replays for label in labels] == [3] * 8


def test_without_a_stream_networks_are_called_themselves(gpu: Gpu) -> None:
    cache = GraphCache(None, None, GraphOptions(debug=True), "some", "plain")
    draw(cache, task(bucket(2)))
    cache.clear()

    assert not cache.enabled
    assert (gpu.captures, cache.keys, list(cache.tell())) == (0, (), [])


def test_a_capture_sees_other_inputs_than_its_check(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that gives what it gave when it was captured is found."""

    def frozen(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return Recording(lambda: None, function(inputs))

    monkeypatch.setattr(graph, "record", frozen)
    cache = gpu.cache()
    draw(cache, task(bucket()))

    [note], labels = told(cache)
    assert "1 x 64x64: drawn without a graph, it cannot be captured (its result" in note
    assert labels == []


CAPTURE_ERRORS = [
    RuntimeError("operation not permitted\nmore"),
    ValueError("no kernel"),
    KeyError(),
]


@pytest.mark.parametrize("error", CAPTURE_ERRORS, ids=lambda error: type(error).__name__)
def test_a_bucket_whose_capture_fails_is_drawn_eagerly_and_told_once(
    error: Exception, gpu: Gpu
) -> None:
    cache = gpu.cache()
    gpu.capture_errors = [None, error]
    good, bad, later = task(bucket(4)), task(bucket(2)), task(bucket(1))
    for own in (good, bad, later, bad, good):
        draw(cache, own)

    reason = str(error).partition("\n")[0]
    notes, _ = told(cache)
    assert notes == [f"2 x 64x64: drawn without a graph, it cannot be captured ({reason})"]
    assert cache.keys == (good.key, later.key)
    assert gpu.captures == 3


def test_a_replay_that_fails_leaves_its_step_and_the_rest_of_the_run_right(gpu: Gpu) -> None:
    cache = gpu.cache()
    inside = task(bucket(2, control=True))
    draw(cache, inside, outside(inside))
    gpu.replay_errors = [None, None, RuntimeError("launch failed\nmore")]
    draw(cache, inside, outside(inside), steps=3)
    draw(cache, inside, outside(inside), steps=2)

    notes, labels = told(cache)
    assert notes == [
        "2 x 64x64, control lineart: drawn without a graph, it cannot be replayed (launch failed)"
    ]
    assert {label.bucket: label.replays for label in labels} == {
        "2 x 64x64": 7,
        "2 x 64x64, control lineart": 3,
    }
    assert cache.keys == (outside(inside).key,)
    assert gpu.captures == 2


def test_debug_finds_a_replay_that_goes_wrong_later(gpu: Gpu) -> None:
    cache = gpu.cache(debug=True)
    draw(cache, task(bucket(2)))
    gpu.shift = 0.1
    draw(cache, task(bucket(2)), steps=1)

    [note], _ = told(cache)
    assert "2 x 64x64: drawn without a graph, it cannot be replayed (its result" in note


def test_without_debug_replays_are_trusted(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    [predict] = cache.begin([own])
    gpu.shift = 0.1

    assert not torch.equal(predict(*step(own)), own.network.call(inputs(own)))
    assert told(cache)[0] == []


def test_a_lane_that_is_not_a_number_is_no_fault_of_a_graph(gpu: Gpu) -> None:
    """Neither of its check, nor of what debug compares."""
    cache, own = gpu.cache(debug=True), task(bucket(2))
    own.settings["guidance"][1] = float("nan")
    [predict] = cache.begin([own])
    for number in range(5):
        result = predict(*step(own, number))
        assert result.isnan().flatten(1).any(1).tolist() == [False, True]

    notes, [label] = told(cache)
    assert (notes, label.replays) == ([], 2)


def test_settings_are_those_of_the_newest_batch(gpu: Gpu) -> None:
    cache = gpu.cache()
    own = task(bucket(2))
    draw(cache, own)
    results: list[Tensor] = []
    for seed in (3, 4):
        [predict] = cache.begin([replace(own, settings=task(bucket(2), seed=seed).settings)])
        results.append(predict(*step(own)))

    assert not torch.equal(*results)


def test_a_prediction_of_an_earlier_batch_is_refused(gpu: Gpu) -> None:
    """Its settings are not in the buffers any more."""
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    [former] = cache.begin([own])
    cache.begin([task(bucket(4))])

    with pytest.raises(StaleInputError, match="2 x 64x64: text"):
        former(*step(own))


def test_an_input_of_another_shape_is_an_error_of_its_batch_only(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    [predict] = cache.begin([own])
    with pytest.raises(ValueError, match="2 x 64x64: latents is"):
        predict(*step(task(bucket(1))))
    draw(cache, own)

    assert (cache.keys, told(cache)[0]) == ((own.key,), [])


def test_what_was_cleared_is_captured_anew_in_another_pool(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    cache.clear()
    assert (cache.keys, gpu.live) == ((), 0)

    draw(cache, own)
    assert len(set(gpu.pools)) == gpu.captures == 2


def test_nothing_of_a_batch_is_kept_that_was_cleared(gpu: Gpu) -> None:
    cache, own = gpu.cache(), task(bucket(2))
    draw(cache, own)
    kept = [ref(value) for value in own.settings.values()]
    cache.clear()
    del own

    assert kept
    assert [each() for each in kept] == [None] * len(kept)


def labels(cache: GraphCache) -> Sequence[tuple[int, str, int]]:
    """Number, bucket and replays of each label that is told now."""
    return [(label.number, label.bucket, label.replays) for label in told(cache)[1]]


def test_labels_count_captures_and_replays_and_come_when_these_are_new(gpu: Gpu) -> None:
    """Neither warm-ups nor the replays of the check count."""
    cache, one, other = gpu.cache(), task(bucket(2)), task(bucket(1))
    draw(cache, one, steps=3)
    assert labels(cache) == [(1, "2 x 64x64", 0)]
    assert labels(cache) == []

    draw(cache, one, steps=3)
    assert labels(cache) == [(1, "2 x 64x64", 3)]
    assert labels(cache) == []

    draw(cache, other)
    assert labels(cache) == [(2, "1 x 64x64", 2)]

    draw(cache, one, steps=2)
    assert labels(cache) == [(1, "2 x 64x64", 5)]


def test_labels_of_released_graphs_are_told(gpu: Gpu) -> None:
    cache = gpu.cache()
    draw(cache, task(bucket(2)))
    cache.clear()
    draw(cache, task(bucket(2)), steps=4)

    assert labels(cache) == [(1, "2 x 64x64", 2), (2, "2 x 64x64", 3)]


def test_a_label_tells_seconds_memory_and_kernels(gpu: Gpu) -> None:
    gpu.call = 100
    cache = gpu.cache()
    draw(cache, task(bucket(2)))

    _, [label] = told(cache)
    assert 0 < label.seconds <= cache.seconds
    assert (label.before, label.after, label.attention) == (0, 100, "some")


def test_what_a_bucket_needs_is_a_call_and_all_that_its_settings_take() -> None:
    """Those of a batch, those in the graph, and those of the next batch, which begins early."""
    gpu, own = Gpu(call=400), task(bucket())
    with pytest.MonkeyPatch.context() as patch:
        gpu.install(patch)
        cache = gpu.cache()
        draw(cache, own)

    [measured] = (event for event in cache.tell() if isinstance(event, Measured))
    assert measured.bytes == 400 + HELD * sum(each.nbytes for each in own.settings.values())
