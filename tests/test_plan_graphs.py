"""Which captured graphs a batch replays, and how many a plan needs."""

from dataclasses import replace

from plan_stories import WIDE, control, panel, story

from comicgen.plan import Batch, Memory, plan
from comicgen.storyboard import Panel


def batch_of(panel: Panel) -> Batch:
    return plan(story(panel), Memory()).batches[0]


def captures(*panels: Panel, batch: int = 1) -> int:
    return plan(story(*panels), Memory(), batch=batch).captures


def test_a_batch_without_a_controlnet_replays_one_graph() -> None:
    batch = batch_of(panel())

    assert [(key.bucket, key.controlnet) for key in batch.keys] == [(batch.bucket, None)]


def test_steps_outside_the_window_replay_the_graph_of_panels_without_a_controlnet() -> None:
    inside, outside = batch_of(panel(control=control(start=0.2, end=1.0))).keys

    assert (str(inside), str(outside)) == ("1 x 64x64, control lineart", "1 x 64x64")
    assert (outside,) == batch_of(panel()).keys


def test_a_window_that_covers_every_step_needs_no_graph_without() -> None:
    assert [str(key) for key in batch_of(panel(control=control(end=1.0), guidance=1)).keys] == [
        "1 x 64x64, control lineart, unguided"
    ]


def test_a_window_that_ends_before_the_last_step_needs_one_without() -> None:
    assert len(batch_of(panel(steps=4, control=control(end=0.99))).keys) == 2


def test_one_controlnet_under_two_names_is_one_graph() -> None:
    one = control(end=1.0)
    other = replace(one, model=replace(one.model, written="copy"))
    named, renamed = (batch_of(panel(control=each)).keys[0] for each in (one, other))

    assert named == renamed
    assert str(renamed) == "1 x 64x64, control copy"


def test_captures_count_graphs_with_and_without_each_controlnet_once() -> None:
    lineart, depth, whole = control(), control("depth"), control("depth", end=1.0)

    assert captures(panel("a"), panel("b")) == 1
    assert captures(panel("a"), panel("b", size=WIDE), panel("c", guidance=1)) == 3
    assert captures(panel("a", control=whole)) == 1
    assert captures(panel("a", control=whole), panel("b", control=lineart)) == 3
    assert captures(panel("a", control=depth), panel("b", control=lineart), panel("c")) == 3
