"""What measurements decide of graphs, prices and time, and that without them nothing is made up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from plan_stories import LANES, SQUARE, control, panel, past, stories, story

from comicgen.diffusion import graph_cache
from comicgen.numerics import Numerics
from comicgen.plan import (
    EAGER_STEPS,
    Bucket,
    Eta,
    Figure,
    Figures,
    Kernels,
    Memory,
    Plan,
    Terms,
    every_candidate,
    every_graph,
    plan,
)
from comicgen.plan.choosing import seconds
from comicgen.plan.lanes import assign
from comicgen.plan.packing import pack
from comicgen.plan.prices import Work, of_lanes, prices
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard

Paces = Mapping[Numerics, float]

GAINS = {1: (0.09, 0.03), 2: (0.09, 0.06), 4: (0.13, 0.12), 8: (0.24, 0.24), 16: (0.5, 0.5)}
"""Seconds of a step, called and replayed, by lanes."""


def figures(
    storyboard: Storyboard, paces: Paces, lanes: int = 16, sizes: Sequence[Size] = ()
) -> Figures:
    """Everything measured; a step takes `GAINS` times the pace of its numerics.

    In `sizes` it is the other way round with paces.
    """
    buckets, decode = {}, {}
    for kind, pace in paces.items():
        other = paces["plain" if kind == "fused" else "fused"] if len(paces) > 1 else pace
        for key in every_graph(storyboard, lanes):
            bucket = key.bucket
            own = other if bucket.size in sizes else pace
            eager, replayed = (own * each for each in GAINS[bucket.batch])
            buckets[kind, bucket] = Figure(eager, replayed, 0.5, bucket.batch << 20)
            decode[kind, bucket.size] = 0.1
    return Figures(buckets, decode, dict.fromkeys(paces, 2.0))


def calibrated(storyboard: Storyboard, kind: Numerics = "plain", **changes: Any) -> Plan:
    known = figures(storyboard, {"plain": 1.0, "fused": 0.8})
    kernels = Kernels(kind, replace(known, **changes))
    return plan(storyboard, Memory(), batch=8, kernels=kernels)


def test_as_many_steps_are_called_before_a_capture_as_the_engine_calls() -> None:
    assert EAGER_STEPS == graph_cache.WARM_UPS


class TestGraphs:
    def test_a_graph_pays_when_its_replays_gain_more_than_its_first_use_takes(self) -> None:
        figure = Figure(eager=0.5, replayed=0.25, first_use=2.5)

        assert not figure.pays(EAGER_STEPS + 10)
        assert figure.pays(EAGER_STEPS + 11)

    def test_a_graph_that_is_no_faster_never_pays(self) -> None:
        assert not Figure(0.2, 0.2, 0.0).pays(10**6)
        assert not Figure(0.2, 0.21, 0.0).pays(10**6)

    @pytest.mark.parametrize("missing", ["eager", "replayed", "first_use"])
    def test_what_was_not_measured_is_taken_to_pay(self, missing: str) -> None:
        assert Figure(**{"eager": 0.2, "replayed": 0.2, "first_use": 1.0, missing: None}).pays(1)

    def test_graphs_that_do_not_pay_are_left_out_and_not_counted(self) -> None:
        made = calibrated(story(panel(candidates=9, steps=100)))

        assert [each.bucket.batch for each in made.batches] == [8, 1]
        assert {key.bucket.batch for key in made.without} == {8}
        assert made.captures == 1
        assert [(each.key.bucket.batch, each.graph) for each in made.choices] == [
            (8, False),
            (1, True),
        ]

    def test_nothing_is_left_out_that_was_not_measured(self) -> None:
        made = plan(story(panel(candidates=9)), Memory(), batch=8)

        assert made.without == frozenset()
        assert all(each.graph for each in made.choices)

    def test_without_graphs_no_choice_has_one(self) -> None:
        made = plan(story(panel()), Memory(), captured=False)

        assert (made.captures, made.without) == (0, frozenset())
        assert not any(each.graph for each in made.choices)


class TestPrices:
    KEY = next(iter(every_graph(story(panel()), 1)))

    def terms(self, measured: Mapping[int, Figure], lanes: int = 2) -> Terms:
        buckets = {
            ("plain", of_lanes(self.KEY, size).bucket): own for size, own in measured.items()
        }
        return Terms(lanes, figures=Figures(buckets))  # type: ignore[arg-type]

    def test_a_family_of_which_all_is_measured_is_packed_by_that(self) -> None:
        """Here two side by side take as long as one."""
        terms = self.terms({1: Figure(0.2, 0.1, 0.0), 2: Figure(0.2, 0.1, 0.0)})

        assert pack([Work(4, ((self.KEY, 20),))], terms) == [(2, 2)]

    def test_a_family_of_which_a_part_is_measured_is_packed_by_fixed_prices(self) -> None:
        work = [Work(4, ((self.KEY, 20),))]
        half = self.terms({2: Figure(0.2, 0.0001, 0.0)})
        torn = self.terms({1: Figure(0.2, 0.1, 0.0), 2: Figure(0.2, None, None)})

        for terms in (half, torn):
            assert prices(work, terms) == prices(work, Terms(2))

    def test_a_graph_that_cannot_pay_is_priced_as_called_and_costs_nothing_at_first(self) -> None:
        terms = self.terms({1: Figure(0.03, 0.02, 0.5), 2: Figure(0.05, 0.05, 0.9)})
        own = prices([Work(100, ((self.KEY, 20),))], terms)

        assert own.step == {(self.KEY, 1): 20_000, (self.KEY, 2): 50_000}
        assert own.first_use == {(self.KEY, 1): 530_000, (self.KEY, 2): 0}

    def test_without_graphs_called_steps_suffice(self) -> None:
        terms = replace(self.terms({1: Figure(0.03), 2: Figure(0.05)}), captured=False)
        own = prices([Work(3, ((self.KEY, 20),))], terms)

        assert own.step == {(self.KEY, 1): 30_000, (self.KEY, 2): 50_000}
        assert set(own.first_use.values()) == {0}


class TestSeconds:
    def test_a_night_is_its_steps_first_uses_pictures_and_the_opening(self) -> None:
        made = calibrated(story(panel(candidates=9, steps=100)))

        eight, one = 100 * 0.24, EAGER_STEPS * 0.09 + (100 - EAGER_STEPS) * 0.03 + 0.5
        assert made.calibrated
        assert made.seconds == pytest.approx(2.0 + eight + one + 9 * 0.1)

    def test_each_graph_is_paid_for_once(self) -> None:
        storyboard = story(panel("a", candidates=1, steps=50), panel("b", candidates=1, steps=60))
        terms = Terms(1, figures=figures(storyboard, {"plain": 1.0}))
        batches = assign(every_candidate(storyboard, Memory()), terms)
        first, second = seconds(batches, terms) or []

        assert first == pytest.approx(EAGER_STEPS * 0.09 + 47 * 0.03 + 0.5 + 0.1)
        assert second == pytest.approx(60 * 0.03 + 0.1)

    def test_steps_outside_a_window_take_what_those_without_a_controlnet_take(self) -> None:
        storyboard = story(panel(candidates=1, control=control(end=0.5)))
        inside, outside = (key.bucket for key in every_graph(storyboard, 1))
        known = {("plain", inside): Figure(3.0), ("plain", outside): Figure(2.0)}
        decode = {("plain", SQUARE): 0.5}
        terms = Terms(1, captured=False, figures=Figures(known, decode))  # type: ignore[arg-type]
        batches = assign(every_candidate(storyboard, Memory()), terms)

        assert seconds(batches, terms) == [10 * 3.0 + 10 * 2.0 + 0.5]

    @pytest.mark.parametrize("missing", ["buckets", "decode", "opening"])
    def test_what_was_not_measured_is_not_guessed(self, missing: str) -> None:
        made = calibrated(story(panel()), **{missing: {}})

        assert (made.calibrated, made.seconds) == (False, None)

    def test_where_nothing_was_measured_the_folders_own_pictures_tell(self) -> None:
        storyboard = story(panel(candidates=2))
        one, _ = every_candidate(storyboard, Memory())
        made = plan(storyboard, Memory({one.name: past(one, seconds=3.0)}))

        assert (made.calibrated, made.seconds) == (False, 3.0)

    def test_the_eta_starts_from_the_calibrated_estimate(self) -> None:
        made = calibrated(story(panel(candidates=9, steps=100)))

        assert made.seconds is not None
        assert Eta(made.batches, made.costs).remaining() == pytest.approx(made.seconds - 2.0)

    @settings(deadline=None)
    @given(stories(), LANES)
    def test_the_estimates_of_batches_add_up_to_the_plans(
        self, storyboard: Storyboard, batch: int
    ) -> None:
        known = figures(storyboard, {"plain": 1.0})
        made = plan(storyboard, Memory(), batch=batch, kernels=Kernels("plain", known))
        each = seconds(made.batches, made.terms)

        assert each is not None
        assert made.seconds == pytest.approx(sum(each) + 2.0)

    def test_memory_is_that_of_the_largest_bucket(self) -> None:
        assert calibrated(story(panel(candidates=9, steps=100))).memory == 8 << 20
        assert plan(story(panel()), Memory()).memory is None


def test_a_figure_is_found_by_its_numerics_and_bucket() -> None:
    bucket = Bucket(1, SQUARE, 1, 0, guided=True)
    known = Figures({("fused", bucket): Figure(0.2, 0.1, 0.5)})

    assert Terms(numerics="fused", figures=known).figure(bucket) == Figure(0.2, 0.1, 0.5)
    assert Terms(figures=known).figure(bucket) is None
    assert Terms(numerics="fused", sizes={SQUARE: "plain"}, figures=known).figure(bucket) is None
