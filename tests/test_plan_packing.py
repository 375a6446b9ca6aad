"""Work packed for the least time: exact tails, padded tails, and what is never dearer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_stories import LANES, MANY, SQUARE, lanes, lora, panel, stories, story

from comicgen.plan import LADDER, Bucket, GraphKey, Memory, Plan, Terms, plan
from comicgen.plan import prices as plan_prices
from comicgen.plan.packing import cover, pack
from comicgen.plan.prices import Prices, Work, fixed_first_use, fixed_step, of_lanes, prices
from comicgen.storyboard import Panel, Storyboard

OF_NOW = plan_prices._STEP

PLAIN = GraphKey(Bucket(1, SQUARE, 1, 0, guided=True))
LINEART, DEPTH = (GraphKey(Bucket(1, SQUARE, 1, 1, guided=True), name) for name in ("l", "d"))
UNGUIDED = GraphKey(Bucket(1, SQUARE, 1, 0, guided=False))
GRAPHS = [(PLAIN,), (UNGUIDED,), (LINEART,), (LINEART, PLAIN), (DEPTH, PLAIN)]

Batches = Sequence[Sequence[int]]


def works(most: int, pieces: int) -> st.SearchStrategy[list[Work]]:
    steps = st.sampled_from([1, 4, 20, 50, 150, MANY])
    piece = st.builds(work, st.integers(1, most), steps, st.sampled_from(GRAPHS))
    return st.lists(piece, min_size=1, max_size=pieces)


def work(count: int, steps: int, graphs: Sequence[GraphKey]) -> Work:
    """Of which a third of the steps, if it is partly controlled, is outside the window."""
    outside = steps // 3 if len(graphs) > 1 else 0
    return Work(count, tuple(zip(graphs, (steps - outside, outside), strict=False)))


def graphs(pieces: Sequence[Work], batches: Batches) -> set[tuple[GraphKey, int]]:
    return {
        (graph, size)
        for each, sizes in zip(pieces, batches, strict=True)
        for graph in each.graphs
        for size in sizes
    }


def time(pieces: Sequence[Work], batches: Batches, own: Prices) -> int:
    """What these batches cost with the first uses of their graphs."""
    pairs = zip(pieces, batches, strict=True)
    steps = sum(own.batch(each, size) for each, sizes in pairs for size in sizes)
    return steps + sum(own.first_use[used] for used in graphs(pieces, batches))


def fixed(pieces: Sequence[Work], lanes: int, captured: bool = True) -> Prices:
    return prices(pieces, Terms(lanes, captured))


def every_cover(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All batches of descending size that cover a count, none of them needless."""
    if count <= 0:
        yield ()
        return
    for index, size in enumerate(sizes):
        for rest in every_cover(count - size, sizes[index:]):
            yield size, *rest


def chunked(count: int, lanes: int) -> tuple[int, ...]:
    """Batches of `lanes` and one for the tail, in the smallest bucket that holds it."""
    full, tail = divmod(count, lanes)
    return (lanes,) * full + tuple(size for size in LADDER if size >= tail)[: tail > 0]


def of_four_and_three(fours: int, steps: int) -> Storyboard:
    """Groups of four candidates, and as the last one of three; each has a LoRA set of its own."""
    counts = [4] * fours + [3]
    return story(
        *(
            panel(f"p{index}", candidates=count, steps=steps, loras=(lora(str(index)),))
            for index, count in enumerate(counts)
        )
    )


def sizes_of_last(storyboard: Storyboard, batch: int = 8) -> list[int]:
    made = plan(storyboard, Memory(), batch=batch)
    last = storyboard.panels[-1]
    return [each.bucket.batch for each in made.batches if each.candidates[0].panel == last]


def test_three_stand_in_a_bucket_of_four_that_others_have_paid_for() -> None:
    made = plan(of_four_and_three(8, steps=20), Memory(), batch=4)

    assert lanes(made)[-1] == ["p8-c01", "p8-c02", "p8-c03", None]
    assert (made.captures, made.padded) == (1, 1)


def test_three_are_drawn_alone_where_no_other_bucket_is_worth_its_capture() -> None:
    assert sizes_of_last(of_four_and_three(0, steps=20)) == [1, 1, 1]


def test_three_are_split_exactly_where_the_steps_pay_for_the_smaller_buckets() -> None:
    assert sizes_of_last(of_four_and_three(4, steps=30)) == [2, 1]
    assert sizes_of_last(of_four_and_three(8, steps=50)) == [1, 1, 1]
    assert sizes_of_last(of_four_and_three(8, steps=500)) == [2, 1]


def test_the_fewer_the_steps_the_sooner_a_tail_is_padded() -> None:
    assert sizes_of_last(of_four_and_three(8, steps=20)) == [4]
    assert sizes_of_last(of_four_and_three(8, steps=4)) == [2, 2]
    assert sizes_of_last(of_four_and_three(4, steps=4)) == [1, 1, 1]


def test_without_graphs_every_tail_is_split_exactly() -> None:
    made = plan(of_four_and_three(2, steps=4), Memory(), batch=4, captured=False)

    assert [each.bucket.batch for each in made.batches] == [4, 4, 2, 1]
    assert made.padded == 0


def test_seven_of_many_steps_are_split_and_so_are_eleven_at_sixteen_lanes() -> None:
    seven, eleven = (story(panel(candidates=count, steps=1000)) for count in (7, 11))

    assert sizes_of_last(seven) == [4, 2, 1]
    assert sizes_of_last(eleven, batch=16) == [8, 2, 1]


def test_nine_stand_in_sixteen_lanes_only_where_these_are_cheaper_than_nine_alone() -> None:
    assert cover(9, 16 | 1, {16: 16, 1: 2}.__getitem__) == (16,)
    assert cover(9, 16 | 1, {16: 19, 1: 2}.__getitem__) == (1,) * 9


def test_steps_outside_a_window_use_the_sizes_that_other_panels_pay_for() -> None:
    """Alone, three would be drawn one by one."""
    partly = Work(3, ((LINEART, 16), (PLAIN, 4)))
    others = [Work(4, ((PLAIN, 20),))] * 12 + [Work(4, ((LINEART, 20),))] * 12

    assert pack([partly], Terms(4)) == [(1, 1, 1)]
    assert pack([partly, *others], Terms(4))[0] == (4,)


def test_what_more_asks_for_is_packed_with_the_rest() -> None:
    storyboard = of_four_and_three(8, steps=20)
    made = plan(storyboard, Memory(more={"p8": 1}), batch=4)

    assert lanes(made)[-1] == ["p8-c01", "p8-c02", "p8-c03", "p8-c04"]
    assert (made.captures, made.padded) == (1, 0)


def kinds(made: Plan) -> Counter[tuple[object, ...]]:
    return Counter((each.bucket, each.loras, each.steps, each.padded) for each in made.batches)


@settings(deadline=None)
@given(st.data(), stories(), LANES)
def test_the_order_of_panels_changes_no_bucket(
    data: st.DataObject, storyboard: Storyboard, batch: int
) -> None:
    shuffled = story(*data.draw(st.permutations(storyboard.panels)))
    one, other = (plan(each, Memory(), batch=batch) for each in (storyboard, shuffled))

    assert kinds(one) == kinds(other)


@settings(deadline=None)
@given(works(most=70, pieces=8), LANES)
def test_batches_are_of_the_ladder_descend_and_hold_no_needless_one(
    pieces: list[Work], lanes: int
) -> None:
    for each, sizes in zip(pieces, pack(pieces, Terms(lanes)), strict=True):
        assert set(sizes) <= {size for size in LADDER if size <= lanes}
        assert list(sizes) == sorted(sizes, reverse=True)
        assert sum(sizes[:-1]) < each.count <= sum(sizes)


@settings(deadline=None)
@given(works(most=5, pieces=3), st.sampled_from([1, 2, 4]), st.booleans())
def test_no_other_choice_of_batches_takes_less_time(
    pieces: list[Work], lanes: int, captured: bool
) -> None:
    own = fixed(pieces, lanes, captured)
    ladder = [size for size in reversed(LADDER) if size <= lanes]
    choices = product(*(list(every_cover(each.count, ladder)) for each in pieces))

    least = min(time(pieces, batches, own) for batches in choices)
    assert time(pieces, pack(pieces, Terms(lanes, captured)), own) == least


@settings(deadline=None)
@given(works(most=70, pieces=8), LANES)
def test_it_never_takes_longer_than_full_batches_and_a_tail(pieces: list[Work], lanes: int) -> None:
    greedy = [chunked(each.count, lanes) for each in pieces]
    own = fixed(pieces, lanes)

    assert time(pieces, pack(pieces, Terms(lanes)), own) <= time(pieces, greedy, own)


@given(st.integers(1, 40), st.integers(1, 31), st.lists(st.integers(1, 50), min_size=5, max_size=5))
def test_a_cover_is_the_cheapest_of_all_that_there_are_whatever_the_prices(
    count: int, sizes: int, prices_of_lanes: list[int]
) -> None:
    price = dict(zip(LADDER, prices_of_lanes, strict=True)).__getitem__
    ladder = [size for size in reversed(LADDER) if size & sizes]
    least = [0] + [0] * count
    for covered in range(1, count + 1):
        least[covered] = min(price(s) + least[max(covered - s, 0)] for s in ladder)

    assert sum(map(price, cover(count, sizes, price))) == least[count]


@pytest.fixture
def _of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prices of the plan itself, for which the tests have others."""
    monkeypatch.setattr(plan_prices, "_STEP", OF_NOW)


@pytest.mark.usefixtures("_of_now")
def test_sixteen_side_by_side_are_dearer_than_twice_eight_and_never_chosen() -> None:
    assert fixed_step(16) > 2 * fixed_step(8)
    assert sizes_of_last(story(panel(candidates=32, steps=MANY)), batch=16) == [8] * 4


@pytest.mark.usefixtures("_of_now")
@pytest.mark.parametrize(("lanes", "seconds"), [(1, 0.6), (8, 1.0), (16, 2.0)])
def test_the_fixed_price_of_a_first_use_is_near_to_what_was_measured(
    lanes: int, seconds: float
) -> None:
    assert fixed_first_use(lanes) / 1e4 == pytest.approx(seconds, rel=0.15)


def test_prices_of_a_bucket_are_found_by_its_graph_of_one_lane() -> None:
    assert of_lanes(LINEART, 8).bucket.batch == 8
    assert set(fixed([work(1, 20, (LINEART, PLAIN))], 2).step) == {
        (LINEART, 1),
        (LINEART, 2),
        (PLAIN, 1),
        (PLAIN, 2),
    }


def of_sampler(id: str, sampler: str, candidates: int) -> Panel:
    return panel(id, sampler=sampler, candidates=candidates, steps=MANY)


def test_under_one_lora_set_larger_batches_are_drawn_first() -> None:
    made = plan(story(of_sampler("a", "euler", 2), of_sampler("b", "ddim", 12)), Memory(), batch=8)

    assert [(each.bucket.batch, each.sampler) for each in made.batches] == [
        (8, "ddim"),
        (4, "ddim"),
        (2, "euler"),
    ]


def test_of_equal_prices_fewer_batches_are_taken_and_then_fewer_empty_lanes() -> None:
    assert cover(2, 4 | 2 | 1, {4: 2, 2: 2, 1: 1}.__getitem__) == (2,)
    assert cover(3, 4 | 2 | 1, {4: 3, 2: 2, 1: 1}.__getitem__) == (4,)
