"""Work packed for the least time: exact tails, padded tails, and what is never dearer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_stories import LANES, MANY, SQUARE, lanes, lora, panel, places, remembered, stories, story

from comicgen.plan import LADDER, Bucket, GraphKey, Memory, Plan, plan
from comicgen.plan.packing import Work, cover, first_use, forward, pack
from comicgen.storyboard import Panel, Storyboard

PLAIN = GraphKey(Bucket(1, SQUARE, 1, 0, guided=True))
LINEART, DEPTH = (GraphKey(Bucket(1, SQUARE, 1, 1, guided=True), name) for name in ("l", "d"))
UNGUIDED = GraphKey(Bucket(1, SQUARE, 1, 0, guided=False))
GRAPHS = [(PLAIN,), (UNGUIDED,), (LINEART,), (LINEART, PLAIN), (DEPTH, PLAIN)]

Batches = Sequence[Sequence[int]]


def works(most: int, pieces: int) -> st.SearchStrategy[list[Work]]:
    steps = st.sampled_from([1, 4, 20, 50, 150])
    piece = st.builds(Work, st.integers(1, most), steps, st.sampled_from(GRAPHS))
    return st.lists(piece, min_size=1, max_size=pieces)


def graphs(work: Sequence[Work], batches: Batches) -> set[GraphKey]:
    return {
        replace(graph, bucket=replace(graph.bucket, batch=size))
        for each, sizes in zip(work, batches, strict=True)
        for graph in each.graphs
        for size in sizes
    }


def time(work: Sequence[Work], batches: Batches, paid: frozenset[GraphKey] = frozenset()) -> int:
    """What these batches cost with the first uses of their graphs, in the unit of `forward`."""
    pieces = zip(work, batches, strict=True)
    steps = sum(each.steps * forward(size) for each, sizes in pieces for size in sizes)
    return steps + sum(first_use(key.bucket.batch) for key in graphs(work, batches) - paid)


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
    assert sizes_of_last(of_four_and_three(1, steps=30)) == [2, 1]
    assert sizes_of_last(of_four_and_three(8, steps=50)) == [1, 1, 1]
    assert sizes_of_last(of_four_and_three(8, steps=500)) == [2, 1]


def test_the_fewer_the_steps_the_sooner_a_tail_is_padded() -> None:
    assert sizes_of_last(of_four_and_three(8, steps=20)) == [4]
    assert sizes_of_last(of_four_and_three(8, steps=2)) == [4]
    assert sizes_of_last(of_four_and_three(2, steps=2)) == [1, 1, 1]


def test_without_graphs_every_tail_is_split_exactly() -> None:
    made = plan(of_four_and_three(2, steps=4), Memory(), batch=4, captured=False)

    assert [each.bucket.batch for each in made.batches] == [4, 4, 2, 1]
    assert made.padded == 0


def test_seven_of_many_steps_are_split_and_so_are_eleven_at_sixteen_lanes() -> None:
    seven, eleven = (story(panel(candidates=count, steps=1000)) for count in (7, 11))

    assert sizes_of_last(seven) == [4, 2, 1]
    assert sizes_of_last(eleven, batch=16) == [8, 2, 1]


def test_fifteen_stand_in_sixteen_lanes_if_these_are_paid_for() -> None:
    sixteen = replace(PLAIN, bucket=replace(PLAIN.bucket, batch=16))

    assert pack([Work(15, 20, (PLAIN,))], 16, {sixteen}) == [(16,)]


def test_steps_outside_a_window_use_the_sizes_that_other_panels_pay_for() -> None:
    """Alone, three would be drawn one by one."""
    partly = Work(3, 20, (LINEART, PLAIN))
    others = [Work(4, 20, (PLAIN,))] * 8 + [Work(4, 20, (LINEART,))] * 8

    assert pack([partly], 4) == [(1, 1, 1)]
    assert pack([partly, *others], 4)[0] == (4,)


def test_lanes_that_are_not_drawn_now_stay_empty_and_their_batches_keep_their_buckets() -> None:
    storyboard = story(panel(candidates=10, steps=MANY))
    done = [f"p01-c{number:02d}" for number in (1, 2, 3, 4, 6, 7, 8, 10)]
    made = plan(storyboard, remembered(storyboard, *done), batch=4)

    assert lanes(made) == [["p01-c05", None, None, None], ["p01-c09", None]]
    assert (made.pictures, made.captures, made.padded) == (2, 2, 4)


def test_what_more_asks_for_uses_the_buckets_that_the_storyboard_has() -> None:
    storyboard = of_four_and_three(8, steps=20)
    made = plan(storyboard, Memory(more={"p0": 3}), batch=4)

    assert lanes(made)[:2] == [
        ["p0-c01", "p0-c02", "p0-c03", "p0-c04"],
        ["p0-c05", "p0-c06", "p0-c07", None],
    ]
    assert made.captures == 1


@settings(deadline=None)
@given(st.data(), stories(), LANES)
def test_asking_for_more_moves_no_candidate_of_the_storyboard(
    data: st.DataObject, storyboard: Storyboard, batch: int
) -> None:
    ids = st.sampled_from([each.id for each in storyboard.panels])
    more = data.draw(st.dictionaries(ids, st.integers(1, 20)))
    before, after = (plan(storyboard, Memory(more=each), batch=batch) for each in ({}, more))

    assert places(before).items() <= places(after).items()
    assert after.pictures == before.pictures + sum(more.values())


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
    work: list[Work], lanes: int
) -> None:
    for each, sizes in zip(work, pack(work, lanes), strict=True):
        assert set(sizes) <= {size for size in LADDER if size <= lanes}
        assert list(sizes) == sorted(sizes, reverse=True)
        assert sum(sizes[:-1]) < each.count <= sum(sizes)


@settings(deadline=None)
@given(works(most=5, pieces=3), st.sampled_from([1, 2, 4]), st.frozensets(st.sampled_from(LADDER)))
def test_no_other_choice_of_batches_takes_less_time(
    work: list[Work], lanes: int, paid_sizes: frozenset[int]
) -> None:
    paid = frozenset(replace(PLAIN, bucket=replace(PLAIN.bucket, batch=s)) for s in paid_sizes)
    ladder = [size for size in reversed(LADDER) if size <= lanes]
    choices = product(*(list(every_cover(each.count, ladder)) for each in work))

    least = min(time(work, batches, paid) for batches in choices)
    assert time(work, pack(work, lanes, paid), paid) == least


@settings(deadline=None)
@given(works(most=70, pieces=8), LANES)
def test_it_never_takes_longer_than_full_batches_and_a_tail(work: list[Work], lanes: int) -> None:
    greedy = [chunked(each.count, lanes) for each in work]

    assert time(work, pack(work, lanes)) <= time(work, greedy)


@given(st.integers(1, 40), st.integers(1, 31))
def test_a_cover_is_the_quickest_of_all_that_there_are(count: int, sizes: int) -> None:
    ladder = [size for size in reversed(LADDER) if size & sizes]
    least = [0] + [0] * count
    for covered in range(1, count + 1):
        least[covered] = min(forward(s) + least[max(covered - s, 0)] for s in ladder)

    assert sum(map(forward, cover(count, sizes))) == least[count]


@pytest.mark.parametrize(("smaller", "larger"), list(pairwise(LADDER)))
def test_a_lane_is_cheaper_in_a_larger_batch(smaller: int, larger: int) -> None:
    assert forward(larger) < forward(smaller) * larger / smaller


def of_sampler(id: str, sampler: str, candidates: int) -> Panel:
    return panel(id, sampler=sampler, candidates=candidates, steps=MANY)


def test_under_one_lora_set_larger_batches_are_drawn_first() -> None:
    made = plan(story(of_sampler("a", "euler", 2), of_sampler("b", "ddim", 12)), Memory(), batch=8)

    assert [(each.bucket.batch, each.sampler) for each in made.batches] == [
        (8, "ddim"),
        (4, "ddim"),
        (2, "euler"),
    ]
