"""What a plan will cost, and how long is left while it is drawn."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from plan_stories import SQUARE, WIDE, lora, only_candidate, panel, past, remembered, story

from comicgen.plan import Batch, Costs, Disk, Eta, Memory, Plan, every_candidate, plan
from comicgen.storyboard import Storyboard

GROUPS = story(panel("wide", size=WIDE, candidates=50), panel("square", size=SQUARE, candidates=50))
TRUE_SECONDS = {WIDE: 1.0, SQUARE: 4.0}


def seconds_of(batch: Batch, pace: float = 1.0) -> float:
    return TRUE_SECONDS[batch.bucket.size] * batch.bucket.batch * pace


def known() -> Costs:
    """Costs as an earlier run of the same kinds left them."""
    every = every_candidate(GROUPS, Memory())
    return Costs.learned(
        Memory({each.name: past(each, seconds=TRUE_SECONDS[each.panel.size]) for each in every})
    )


def errors_of_eta(made: Plan, costs: Costs, pace: float) -> list[float]:
    """The relative error of the ETA after each batch, the last left out."""
    eta, left = Eta(made.batches, costs), sum(seconds_of(b, pace) for b in made.batches)
    errors = []
    for batch, _ in pairwise(made.batches):
        eta.finished(batch, seconds_of(batch, pace))
        left -= seconds_of(batch, pace)
        remaining = eta.remaining()
        assert remaining is not None
        errors.append(abs(remaining - left) / left)
    return errors


@pytest.mark.parametrize("batch", [1, 4])
def test_two_groups_of_one_and_four_seconds_are_told_right_from_a_tenth_on(batch: int) -> None:
    errors = errors_of_eta(plan(GROUPS, Memory(), batch=batch), known(), pace=1.0)

    assert max(errors[len(errors) // 10 :]) < 0.15


def test_a_machine_that_became_half_as_fast_is_told_right_from_a_tenth_on() -> None:
    errors = errors_of_eta(plan(GROUPS, Memory()), known(), pace=2.0)

    assert max(errors[len(errors) // 10 :]) < 0.15


def test_without_known_costs_a_group_that_was_measured_is_told_right() -> None:
    made = plan(story(panel(candidates=20)), Memory())

    assert max(errors_of_eta(made, Costs(), pace=1.0)) < 0.01


def test_without_known_costs_other_groups_are_guessed_by_their_work() -> None:
    storyboard = story(panel("a", size=WIDE, candidates=1), panel("b", candidates=1, steps=10))
    made = plan(storyboard, Memory())
    eta = Eta(made.batches, Costs())
    eta.finished(made.batches[0], 6.0)

    pixels, steps = 64 / 96, 10 / 20
    assert eta.remaining() == pytest.approx(6.0 * pixels * steps)


def test_nothing_measured_means_no_eta_and_no_cost() -> None:
    made = plan(GROUPS, Memory())

    assert made.seconds is None
    assert Eta(made.batches, Costs()).remaining() is None


def test_known_costs_give_an_eta_before_the_first_picture() -> None:
    made = plan(GROUPS, Memory())

    assert (
        Eta(made.batches, known()).remaining() == replace(made, costs=known()).seconds == 50 + 200
    )


def test_a_batch_that_gave_no_picture_is_counted_off_but_not_measured() -> None:
    made = plan(GROUPS, Memory())
    eta = Eta(made.batches, known())
    eta.finished(made.batches[0], None)

    assert eta.remaining() == 49 + 200


def test_one_slow_first_picture_does_not_spoil_the_eta() -> None:
    made = plan(GROUPS, Memory())
    eta = Eta(made.batches, known())
    for batch, seconds in zip(made.batches, [9.0, 1.0, 1.0], strict=False):
        eta.finished(batch, seconds)

    assert eta.remaining() == 47 + 200


def test_empty_lanes_cost_as_much_as_full_ones() -> None:
    panels = [panel(f"p{index}", loras=(lora(str(index)),), candidates=4) for index in range(8)]
    storyboard = story(*panels, panel("last", candidates=3))
    made = replace(plan(storyboard, Memory(), batch=4), costs=Costs.learned(remembered(storyboard)))

    assert (made.pictures, made.padded) == (35, 1)
    assert made.seconds == 36.0


def cost_of(storyboard: Storyboard, costs: Costs) -> float | None:
    return replace(plan(storyboard, Memory()), costs=costs).seconds


def test_an_unknown_kind_costs_by_pixels_steps_and_branches() -> None:
    costs = Costs.learned(remembered(story(panel(candidates=1))))
    one: dict[str, Any] = {"candidates": 1}

    assert cost_of(story(panel(**one)), costs) == 1.0
    assert cost_of(story(panel(size=WIDE, **one)), costs) == pytest.approx(1.5)
    assert cost_of(story(panel(steps=40, **one)), costs) == pytest.approx(2.0)
    assert cost_of(story(panel(guidance=1.0, **one)), costs) == pytest.approx(0.5)


def test_costs_come_from_pictures_drawn_in_the_same_environment() -> None:
    candidate = only_candidate(story(panel(candidates=1)))
    memory = Memory({"p01-c01": past(candidate, seconds=3.0)})

    assert Costs.learned(memory, ["elsewhere"]) == Costs()
    assert list(Costs.learned(memory, ["elsewhere", "here"]).seconds.values()) == [3.0]


def test_nothing_to_draw_costs_nothing() -> None:
    made = plan(GROUPS, remembered(GROUPS))

    assert made.seconds == 0


def test_disk_is_what_pictures_of_the_size_took_and_else_three_bytes_a_pixel() -> None:
    storyboard = story(panel("a", candidates=3), panel("b", size=WIDE, candidates=1))
    one, two, three, wide = every_candidate(storyboard, Memory())
    known = Memory({one.name: past(one, bytes=1000), two.name: past(two, bytes=2000)})

    assert Disk.of([three], known) == Disk(1500, at_most=False)
    assert Disk.of([three, wide], known) == Disk(1500 + 3 * 96 * 64, at_most=True)
    assert Disk.of([], Memory()) == Disk(0, at_most=False)
    assert plan(storyboard, known).disk == Disk(1500 + 3 * 96 * 64, at_most=True)
