"""The check of a graph finds every way in which it is not the function that was captured."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from recordings import STREAM, WIDE, Toy, again, bucket, inputs, task
from torch import Tensor

from comicgen.diffusion import graph
from comicgen.diffusion.graph import Buffers, Function, Graph, Recording
from comicgen.diffusion.graph_check import ReplayError, check, compare
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.prepared import Named, invented

Record = Callable[[Function, Named, Any, Any], Recording]


def checked(
    own: Task, recorded: Record, monkeypatch: pytest.MonkeyPatch, values: Named | None = None
) -> int:
    """Capture as the cache does, on inputs other than those of the check, and check.

    The number of replays that it took; `values` stand for those of a batch.
    """
    monkeypatch.setattr(graph, "record", recorded)
    values = values or invented(inputs(own), seed=1)
    others = invented(inputs(own), seed=2)
    made = Graph(str(own.key), Buffers(), values)
    made.load(others)
    made.capture(own.network.call, object(), STREAM)
    check(made, own.network.call, values, others, own.network.call(values))
    return made.replays


def honest(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
    return again(function, inputs)


def deaf_to(name: str) -> Record:
    """A recording with this input as it was at the capture."""

    def recorded(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return again(function, {**inputs, name: inputs[name].clone()})

    return recorded


LANES = pytest.mark.parametrize("lanes", [1, 2, 4, 8])
NAMES = pytest.mark.parametrize("name", inputs(task(bucket(control=True))))


@LANES
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("strength", [1.0, 1e-4])
def test_an_honest_recording_passes(
    lanes: int, control: bool, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Toy(strength)
    checked(task(bucket(lanes, WIDE, control), network), honest, monkeypatch)

    assert len(network.seen) > 1


@LANES
@NAMES
def test_a_recording_that_ignores_an_input_is_found(
    lanes: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReplayError):
        checked(task(bucket(lanes, control=True)), deaf_to(name), monkeypatch)


@LANES
@NAMES
def test_an_input_that_is_remembered_from_the_call_before_is_named(
    lanes: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first comparison cannot see it; only changing that input alone does."""
    own = task(bucket(lanes, control=True))
    remembered = invented(inputs(own), seed=1)[name]

    def recorded(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return again(function, {**inputs, name: remembered})

    with pytest.raises(ReplayError, match=f"does not read {name}$"):
        checked(own, recorded, monkeypatch)


@LANES
@NAMES
def test_an_input_that_the_network_ignores_is_none_of_the_graphs_faults(
    lanes: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = task(bucket(lanes, control=True), Toy(deaf=(name,)))

    assert checked(own, honest, monkeypatch) > checked(
        replace(own, network=Toy()), honest, monkeypatch
    )


def test_a_controlnet_that_does_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = task(bucket(2, control=True), Toy(deaf=("control_hint", "control_weight")))

    assert checked(own, deaf_to("control_hint"), monkeypatch) > 0


@LANES
def test_a_result_that_never_changes_is_found(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return Recording(lambda: None, function(inputs))

    with pytest.raises(ReplayError, match="its result is off by up to"):
        checked(task(bucket(lanes)), stale, monkeypatch)


def test_lanes_that_changed_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return again(lambda values: function(values).flip(0), inputs)

    with pytest.raises(ReplayError, match="its result is off by up to"):
        checked(task(bucket(2)), turned, monkeypatch)


def test_not_a_number_in_the_replay_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return again(lambda values: function(values).index_fill_(3, torch.tensor([2]), nan), inputs)

    nan = float("nan")
    with pytest.raises(ReplayError):
        checked(task(bucket(2)), broken, monkeypatch)


def test_not_a_number_in_both_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    own = task(bucket(2), Toy(weight=torch.full((1,), float("nan"))))

    assert checked(own, honest, monkeypatch) > 0


@LANES
@pytest.mark.parametrize("name", ["guidance", "control_hint"])
def test_an_input_that_is_inert_in_a_batch_is_heard_in_what_is_invented(
    name: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in empty lanes, whose prompt is their negative and whose control weighs nothing."""
    own = task(bucket(lanes, control=True), Product())
    values = invented(inputs(own), seed=1)
    values["text"][1::2] = values["text"][::2]
    values["control_weight"].zero_()

    def recorded(function: Function, inputs: Named, pool: Any, stream: Any) -> Recording:
        return again(function, {**inputs, name: values[name]})

    assert checked(own, honest, monkeypatch, values) > 0
    with pytest.raises(ReplayError, match=f"does not read {name}$"):
        checked(own, recorded, monkeypatch, values)


class Product(Toy):
    """Guidance weighs the difference of two branches, and the control weight the hint."""

    def call(self, inputs: Named) -> Tensor:
        size = inputs["latents"].shape
        rows = inputs["text"].float().mean((1, 2)) + inputs["pooled"].float().mean(1)
        rows = rows + inputs["time_ids"].mean(1) + inputs["control_text"].float().mean((1, 2))
        rows = rows + (inputs["control_hint"].mean((1, 2, 3)) * inputs["control_weight"].flatten())
        negative, prompt = rows[::2], rows[1::2]
        lanes = negative + inputs["guidance"].flatten() * (prompt - negative) + inputs["timestep"]
        return inputs["latents"] + lanes.view(-1, 1, 1, 1).expand(size)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_replay_may_differ_by_no_bit() -> None:
    one = noise(2, 4, 8, 8)
    compare(one.clone(), one)

    with pytest.raises(ReplayError, match="off by up to"):
        compare(one.nextafter(one + 1), one)


def test_a_wrong_lane_is_found_beside_one_of_much_larger_numbers() -> None:
    one = noise(2, 4, 8, 8)
    one[0] *= 1e5
    wrong = torch.cat([one[:1], one[1:] + 1])

    with pytest.raises(ReplayError):
        compare(wrong, one)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["replayed", "expected"])
def test_what_is_not_finite_must_be_so_in_both(odd: float, where: str) -> None:
    one = noise(2, 4, 8, 8)
    other = one.clone()
    other[1, 2, 3, 4] = odd
    replayed, expected = (other, one) if where == "replayed" else (one, other)
    compare(other.clone(), other)

    with pytest.raises(ReplayError):
        compare(replayed, expected)


LIKE = inputs(task(bucket(2, control=True)))


def test_invented_inputs_have_the_shapes_and_dtypes_of_real_ones() -> None:
    made = invented(LIKE, seed=1)

    assert list(made) == list(LIKE)
    for name, value in LIKE.items():
        assert (made[name].shape, made[name].dtype) == (value.shape, value.dtype)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("timestep", 0, 1000),
        ("time_ids", 0, 1536),
        ("guidance", 1, 10),
        ("control_weight", 0, 2),
    ],
)
def test_invented_inputs_are_what_a_batch_could_have(name: str, least: float, most: float) -> None:
    value = invented(LIKE, seed=1)[name]

    assert value.min() >= least
    assert value.max() <= most
    assert value.min() < value.max()


def test_invented_inputs_of_two_seeds_differ_in_every_row_of_every_name() -> None:
    one, other, same = (invented(LIKE, seed) for seed in (1, 2, 1))

    for name in LIKE:
        assert torch.equal(one[name], same[name])
        assert (one[name] != other[name]).view(len(LIKE[name]), -1).any(1).all()
