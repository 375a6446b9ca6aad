"""What measurements decide of numerics: of a folder for good, and of each size."""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from plan_stories import SQUARE, WIDE, control, panel, past, remembered, stories, story
from test_plan_measured import Paces, figures

from comicgen.numerics import Numerics
from comicgen.plan import (
    LADDER,
    Figures,
    Kernels,
    Memory,
    Plan,
    Terms,
    choosing,
    every_candidate,
    every_graph,
    numerics_for,
    plan,
)
from comicgen.plan.choosing import numerics_by_size
from comicgen.plan.lanes import assign, every_work
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard

TALL = Size(64, 96)


class TestFolder:
    STORY = story(panel("a", candidates=8), panel("b", size=WIDE, candidates=8))

    def chosen(self, plain: float, fused: float, opening: Paces | None = None) -> Numerics:
        known = figures(self.STORY, {"plain": plain, "fused": fused})
        known = replace(known, opening=opening or known.opening)
        return numerics_for(self.STORY, Terms(8, figures=known))

    def test_the_quicker_numerics_are_chosen(self) -> None:
        assert self.chosen(plain=1.0, fused=0.8) == "fused"
        assert self.chosen(plain=0.8, fused=1.0) == "plain"

    def test_the_difference_of_opening_counts(self) -> None:
        assert self.chosen(1.0, 0.8, {"plain": 1.0, "fused": 60.0}) == "plain"

    @pytest.mark.parametrize("opening", [{}, {"fused": 60.0}, {"plain": 60.0}], ids=str)
    def test_an_opening_that_was_not_measured_leaves_it_at_fused(self, opening: Paces) -> None:
        known = figures(self.STORY, {"plain": 0.8, "fused": 1.0})
        terms = Terms(8, figures=replace(known, opening=opening))

        assert numerics_for(self.STORY, terms) == "fused"

    def test_a_fused_folder_counts_with_the_sizes_that_it_draws_plain(self) -> None:
        """Fused everywhere would be slower than plain everywhere, but nothing is drawn so."""
        square = panel("a", candidates=8, steps=100)
        storyboard = story(square, panel("b", size=WIDE, candidates=16, steps=100))
        known = figures(storyboard, {"plain": 1.0, "fused": 0.8}, sizes=[WIDE])

        assert numerics_for(storyboard, Terms(8, figures=known)) == "fused"

    def test_the_second_opening_of_a_fused_folder_counts(self) -> None:
        """Fused ones gain 4.8 seconds in one size, plain ones 9.6 in the other."""
        square = panel("a", candidates=8, steps=100)
        storyboard = story(square, panel("b", size=WIDE, candidates=16, steps=100))
        known = figures(storyboard, {"plain": 1.0, "fused": 0.8}, sizes=[WIDE])
        known = replace(known, opening={"plain": 5.0, "fused": 5.0})

        assert numerics_for(storyboard, Terms(8, figures=known)) == "plain"

    def test_fused_ones_are_taken_where_either_was_not_measured(self) -> None:
        for paces in ({}, {"plain": 0.1}, {"fused": 9.0}):
            known = figures(self.STORY, paces)  # type: ignore[arg-type]
            assert numerics_for(self.STORY, Terms(8, figures=known)) == "fused"

    def test_the_whole_storyboard_decides_and_not_what_is_left(self) -> None:
        """Of the wide pictures alone plain ones would be quicker."""
        storyboard = story(panel("a", candidates=8), panel("b", size=WIDE, candidates=1))
        known = figures(storyboard, {"plain": 1.0, "fused": 0.8}, sizes=[WIDE])

        assert numerics_for(storyboard, Terms(8, figures=known)) == "fused"


@given(stories())
@settings(max_examples=30, deadline=None)
def test_an_arm_is_what_a_plan_of_it_would_take(storyboard: Storyboard) -> None:
    known = figures(storyboard, {"plain": 1.0, "fused": 0.8})
    for insisted in (False, True):
        terms = Terms(8, figures=known, insisted=insisted)
        arms = choosing._arms(every_work(storyboard), terms)
        for kind in get_args(Numerics):
            own = replace(terms, numerics=kind)
            took = choosing.seconds(assign(every_candidate(storyboard, Memory()), own), own)
            assert took is not None
            expected = pytest.approx(sum(took))
            assert sum(getattr(each, kind) for each in arms.values()) == expected


class TestSizes:
    STORY = story(panel("a", candidates=8, steps=50), panel("b", size=WIDE, candidates=8, steps=50))

    def known(self) -> Figures:
        return figures(self.STORY, {"plain": 1.0, "fused": 0.8}, sizes=[WIDE])

    def drawn(self, memory: Memory, kind: Numerics = "fused", batch: int = 8) -> Plan:
        kernels = Kernels(kind, self.known(), "plainly")
        return plan(self.STORY, memory, batch=batch, environment="fused", kernels=kernels)

    def test_a_size_that_is_quicker_so_is_plain_in_a_fused_folder_and_comes_last(self) -> None:
        made = self.drawn(Memory())

        kinds = [(each.bucket.size, each.numerics) for each in made.batches]
        assert kinds == sorted(kinds, key=lambda each: each[1])
        assert set(kinds) == {(SQUARE, "fused"), (WIDE, "plain")}
        assert made.unsettled == {SQUARE: "fused", WIDE: "plain"}

    def test_the_choice_tells_both_numerics(self) -> None:
        [wide] = [each for each in self.drawn(Memory()).choices if each.key.bucket.size == WIDE]

        assert (wide.numerics, wide.plain, wide.fused) == ("plain", 0.8 * 0.24, 0.24)
        assert wide.to_json() == {
            "bucket": "8 x 96x64",
            "numerics": "plain",
            "graph": False,
            "eager": 0.8 * 0.24,
            "replayed": 0.8 * 0.24,
            "plain": 0.8 * 0.24,
            "fused": 0.24,
        }

    def test_what_was_decided_stays_whatever_is_measured_later(self) -> None:
        made = self.drawn(Memory(numerics="fused", sizes={WIDE: "fused", SQUARE: "plain"}))

        assert {(each.bucket.size, each.numerics) for each in made.batches} == {
            (SQUARE, "plain"),
            (WIDE, "fused"),
        }
        assert made.unsettled == {}

    def test_a_size_that_left_the_storyboard_has_not_paid_for_plain_numerics(self) -> None:
        known = replace(self.known(), opening={"plain": 1000.0, "fused": 1.0})
        terms = Terms(8, numerics="fused", figures=known)
        for gone, wide in ((Size(320, 320), "fused"), (SQUARE, "plain")):
            sizes = numerics_by_size(self.STORY, terms, {gone: "plain"})
            assert sizes[WIDE] == wide

    def test_a_plain_folder_is_plain_in_all_sizes(self) -> None:
        made = self.drawn(Memory(), kind="plain")

        assert {each.numerics for each in made.batches} == {"plain"}
        assert made.unsettled == {}

    def test_only_sizes_that_are_drawn_are_settled(self) -> None:
        every = every_candidate(self.STORY, Memory())
        done = {each.name: past(each) for each in every if each.panel.id == "b"}

        assert self.drawn(Memory(done)).unsettled == {SQUARE: "fused"}

    def test_a_size_is_settled_by_the_whole_storyboard_alike_for_all_batches(self) -> None:
        terms = Terms(8, numerics="fused", figures=self.known())

        assert numerics_by_size(self.STORY, terms, {}) == {SQUARE: "fused", WIDE: "plain"}
        half = remembered(self.STORY, "b-c01", "b-c02", "b-c03", "b-c04", "b-c05", "b-c06")
        assert self.drawn(half).terms.sizes == {SQUARE: "fused", WIDE: "plain"}

    def settled(
        self, opening: Paces, decided: Mapping[Size, Numerics] | None = None
    ) -> Mapping[Size, Numerics]:
        """Where plain numerics gain 2.4 seconds in either of two sizes."""
        storyboard = story(*self.STORY.panels, panel("c", size=TALL, candidates=8, steps=50))
        known = figures(storyboard, {"plain": 1.0, "fused": 0.8}, sizes=[WIDE, TALL])
        terms = Terms(8, numerics="fused", figures=replace(known, opening=opening))
        return numerics_by_size(storyboard, terms, decided or {})

    def test_sizes_are_plain_only_if_together_they_gain_more_than_a_second_opening(self) -> None:
        mixed = {SQUARE: "fused", WIDE: "plain", TALL: "plain"}

        assert self.settled({"plain": 4.7, "fused": 0.1}) == mixed
        for opening in ({"plain": 4.9, "fused": 0.1}, {"fused": 0.1}):
            assert set(self.settled(opening).values()) == {"fused"}

    def test_where_a_size_is_plain_already_the_opening_is_not_counted_again(self) -> None:
        decided: dict[Size, Numerics] = {WIDE: "plain"}

        assert self.settled({"plain": 60.0}, decided)[TALL] == "plain"
        assert self.settled({"plain": 60.0}, {WIDE: "fused"})[TALL] == "fused"

    def test_a_picture_is_compared_with_the_environment_of_its_own_numerics(self) -> None:
        every = every_candidate(self.STORY, Memory())
        labels = {"a": "fused", "b": "plainly"}
        right = {each.name: past(each, environment=labels[each.panel.id]) for each in every}
        wrong = {each.name: past(each, environment="fused") for each in every}

        assert {str(each.reason) for each in self.drawn(Memory(right)).kept} == {"done"}
        assert {
            each.candidate.panel.id: str(each.reason) for each in self.drawn(Memory(wrong)).kept
        } == {"a": "done", "b": "done (environment differs)"}


def test_every_graph_of_a_storyboard_is_listed_with_its_controlnet_largest_first() -> None:
    storyboard = story(
        panel("small"),
        panel("large", size=WIDE, control=control()),
        panel("whole", control=control("depth", end=1.0), guidance=1.0),
    )
    graphs = every_graph(storyboard, 2)

    assert [str(key) for key in graphs] == [
        "2 x 96x64, control lineart",
        "1 x 96x64, control lineart",
        "2 x 96x64",
        "1 x 96x64",
        "2 x 64x64, control depth, unguided",
        "1 x 64x64, control depth, unguided",
        "2 x 64x64",
        "1 x 64x64",
    ]
    assert [found and found.written for found in graphs.values()] == [
        *["lineart"] * 2,
        *[None] * 2,
        *["depth"] * 2,
        *[None] * 2,
    ]
    assert len(every_graph(storyboard, 16)) == 4 * len(LADDER)
