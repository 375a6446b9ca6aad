"""The plan as a whole: every candidate once, batches uniform, decisions where they belong."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_stories import (
    LANES,
    MANY,
    SQUARE,
    WIDE,
    control,
    lanes,
    lora,
    memories,
    model,
    panel,
    past,
    remembered,
    stories,
    story,
)

from comicgen.errors import CommandError
from comicgen.plan import (
    Batch,
    Candidate,
    Memory,
    Selection,
    Terms,
    every_candidate,
    plan,
)
from comicgen.plan.lanes import assign
from comicgen.storyboard import Storyboard


def names(candidates: list[Candidate] | tuple[Candidate, ...]) -> list[str]:
    return [candidate.name for candidate in candidates]


def shared(batch: Batch, candidate: Candidate) -> tuple[object, ...]:
    """What a candidate needs of its batch, beside what the batch has."""
    panel = candidate.panel
    window = panel.control and (panel.control.model, panel.control.start, panel.control.end)
    own = (panel.size, panel.loras, panel.sampler, panel.steps, window, panel.guidance > 1)
    control = batch.control and (batch.control.model, batch.control.start, batch.control.end)
    bucket = batch.bucket
    has = (bucket.size, batch.loras, batch.sampler, batch.steps, control, bucket.guided)
    return own, has


@st.composite
def selections(draw: st.DrawFn, storyboard: Storyboard) -> Selection:
    ids = st.sampled_from([p.id for p in storyboard.panels])
    return Selection(
        tuple(draw(st.lists(ids, max_size=3))),
        draw(st.sampled_from([None, 1])),
        draw(st.booleans()),
    )


@settings(deadline=None)
@given(st.data(), stories(), LANES)
def test_each_candidate_is_drawn_kept_or_waiting_once_and_the_drawn_stand_in_one_lane_each(
    data: st.DataObject, storyboard: Storyboard, batch: int
) -> None:
    memory = data.draw(memories(storyboard))
    made = plan(storyboard, memory, data.draw(selections(storyboard)), batch=batch)

    decided = [each.candidate.name for each in (*made.drawn, *made.kept, *made.waiting)]
    in_batches = list(chain.from_iterable(names(each.candidates) for each in made.batches))
    assert sorted(decided) == sorted(names(every_candidate(storyboard, memory)))
    assert sorted(in_batches) == sorted(each.candidate.name for each in made.drawn)
    assert all(each.reason.draw for each in (*made.drawn, *made.waiting))
    assert not any(each.reason.draw for each in made.kept)


@settings(deadline=None)
@given(st.data(), stories(), LANES)
def test_candidates_of_a_batch_share_all_that_a_batch_fixes_and_are_not_too_many(
    data: st.DataObject, storyboard: Storyboard, batch: int
) -> None:
    made = plan(storyboard, data.draw(memories(storyboard)), batch=batch)

    for each in made.batches:
        assert len(each.lanes) == each.bucket.batch <= batch
        assert each.bucket.controls == (each.control is not None)
        for candidate in each.candidates:
            own, has = shared(each, candidate)
            assert own == has


@settings(deadline=None)
@given(st.data(), stories(), LANES)
def test_no_lane_is_drawn_for_what_is_done_or_waits(
    data: st.DataObject, storyboard: Storyboard, batch: int
) -> None:
    memory = data.draw(memories(storyboard))
    made = plan(storyboard, memory, data.draw(selections(storyboard)), batch=batch)
    lacking = [each.candidate for each in made.drawn]

    assert list(made.batches) == assign(lacking, Terms(batch))
    assert all(each.candidates == each.lanes[: len(each.candidates)] for each in made.batches)


def test_what_is_left_of_a_batch_is_packed_anew() -> None:
    storyboard = story(panel(candidates=8, steps=MANY))
    done = [f"p01-c{number:02d}" for number in (1, 2, 3, 5, 6, 8)]
    made = plan(storyboard, remembered(storyboard, *done), batch=8)

    assert lanes(made) == [["p01-c04", "p01-c07"]]


@settings(deadline=None)
@given(stories(), LANES)
def test_what_was_drawn_is_kept_by_the_next_plan(storyboard: Storyboard, batch: int) -> None:
    made = plan(storyboard, remembered(storyboard), batch=batch, environment="here")

    assert not made.batches
    assert not made.drawn
    assert not made.waiting


def test_ten_candidates_of_many_steps_at_four_lanes_are_four_four_and_two() -> None:
    made = plan(story(panel(candidates=10, steps=MANY)), Memory(), batch=4)

    assert [each.bucket.batch for each in made.batches] == [4, 4, 2]
    assert (made.pictures, made.captures, made.padded, made.groups) == (10, 2, 0, 1)


def test_the_largest_size_comes_first_then_control_then_each_lora_set_and_sampler_once() -> None:
    with_lora = (lora("m"),)
    storyboard = story(
        panel("small", candidates=1),
        panel("plain", size=WIDE, candidates=1),
        panel("lora", size=WIDE, loras=with_lora, candidates=1),
        panel("control", size=WIDE, control=control(), candidates=1),
        panel("ddim", size=WIDE, sampler="ddim", candidates=1),
        panel("lora2", size=WIDE, loras=with_lora, candidates=1),
        panel("plain2", size=WIDE, candidates=1),
    )
    made = plan(storyboard, Memory())

    order = ["control", "plain", "plain2", "ddim", "lora", "lora2", "small"]
    assert lanes(made) == [[f"{id}-c01"] for id in order]


def test_another_lora_set_is_another_batch_and_another_group() -> None:
    two = story(panel("a", loras=(lora("x"),)), panel("b", loras=(lora("y"),)))
    made = plan(two, Memory(), batch=8)

    assert lanes(made) == [["a-c01", "a-c02"], ["b-c01", "b-c02"]]
    assert (made.groups, made.captures) == (2, 1)


def test_equal_files_at_other_paths_and_in_another_order_share_a_batch() -> None:
    one, two = lora("x"), lora("y")
    copied = replace(one, written="copy", file=one.file.with_name("copy"))
    storyboard = story(panel("a", loras=(one, two)), panel("b", loras=(two, copied)))
    made = plan(storyboard, Memory(), batch=2)

    assert made.groups == 1


def test_prompts_guidance_and_control_weights_may_differ_within_a_batch() -> None:
    panels = [
        panel("a", prompt="one", guidance=3.0, control=control(weight=0.2), steps=MANY),
        panel("b", prompt="two", guidance=9.0, control=control(weight=0.9), steps=MANY),
    ]

    assert [b.bucket.batch for b in plan(story(*panels), Memory(), batch=4).batches] == [4]


def test_guidance_of_one_is_drawn_unguided_and_apart() -> None:
    panels = [panel("a", guidance=1, steps=MANY), panel("b", guidance=1.5, steps=MANY)]
    made = plan(story(*panels), Memory(), batch=4)

    assert [each.bucket.guided for each in made.batches] == [False, True]


def test_what_needs_drawing_but_was_not_selected_waits() -> None:
    storyboard = story(panel("a"), panel("b"), panel("c"))
    made = plan(storyboard, remembered(storyboard, "c-c01"), Selection(("b",)))

    assert names([each.candidate for each in made.drawn]) == ["b-c01", "b-c02"]
    assert names([each.candidate for each in made.waiting]) == ["a-c01", "a-c02", "c-c02"]
    assert names([each.candidate for each in made.kept]) == ["c-c01"]


def test_raised_candidates_draw_only_the_added_ones() -> None:
    two, four = story(panel(candidates=2)), story(panel(candidates=4))
    made = plan(four, remembered(two))

    assert names([each.candidate for each in made.drawn]) == ["p01-c03", "p01-c04"]


def test_an_edited_caption_draws_nothing_and_an_edited_lora_only_its_panels() -> None:
    before = story(panel("a"), panel("b", loras=(lora("x"),)))
    after = story(
        panel("a", caption="She counts."),
        panel("b", loras=(replace(lora("x"), digest=lora("y").digest),)),
    )
    made = plan(after, remembered(before))

    assert names([each.candidate for each in made.drawn]) == ["b-c01", "b-c02"]


def test_candidates_that_the_storyboard_lost_are_orphans() -> None:
    before = story(panel("a", candidates=3), panel("b", candidates=1))
    made = plan(story(panel("a", candidates=2)), remembered(before))

    assert made.orphans == ("a-c03", "b-c01")


def test_failed_selects_what_failed_even_if_it_was_changed_since() -> None:
    storyboard = story(panel("a"), panel("b"))
    every = {each.name: each for each in every_candidate(storyboard, Memory())}
    failed = {name: past(every[name], "failed", detail="NaN") for name in ("a-c02", "b-c01")}
    edited = story(panel("a"), panel("b", prompt="mended"))
    made = plan(edited, Memory(candidates=failed), Selection(failed=True))

    assert names([each.candidate for each in made.drawn]) == ["a-c02", "b-c01"]
    assert [each.reason.kind for each in made.drawn] == ["failed", "changed"]


def test_a_number_selects_that_candidate_wherever_there_is_one() -> None:
    made = plan(story(panel("a", candidates=1), panel("b")), Memory(), Selection(candidate=2))

    assert names([each.candidate for each in made.drawn]) == ["b-c02"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(("p1",)), "--panel p1: the storyboard has no panel 'p1'; did you mean 'p01'?"),
        (Selection(("p02", "zz")), "did you mean"),
        (Selection(("p01",), 3), "panel 'p01' has 2 candidates, numbered from 1; --more N adds"),
        (Selection(("p02", "p01"), 2), "panel 'p02' has 1 candidate, numbered"),
        (Selection(candidate=3), "no panel has more than 2 candidates"),
        (Selection(candidate=0), "no panel has more than 2 candidates, numbered from 1"),
    ],
)
def test_a_selection_of_what_is_not_there_says_what_is(selection: Selection, message: str) -> None:
    storyboard = story(panel("p01"), panel("p02", candidates=1))

    with pytest.raises(CommandError) as caught:
        plan(storyboard, Memory(), selection)
    assert message in str(caught.value)


def test_every_unknown_panel_is_named_at_once() -> None:
    with pytest.raises(CommandError) as caught:
        plan(story(panel("p01")), Memory(), Selection(("x", "y", "p01")))
    assert len(str(caught.value).splitlines()) == 2


def test_a_number_that_more_added_can_be_selected() -> None:
    made = plan(story(panel()), Memory(more={"p01": 1}), Selection(("p01",), 3))

    assert names([each.candidate for each in made.drawn]) == ["p01-c03"]


def test_the_plan_as_json_names_batches_lanes_and_every_candidates_reason() -> None:
    storyboard = story(panel("a", candidates=5, steps=MANY, control=control(), loras=(lora("x"),)))
    made = plan(storyboard, remembered(storyboard, "a-c01"), batch=4).to_json()

    assert made["batches"] == [
        {
            "bucket": "4 x 64x64, control",
            "lanes": ["a-c02", "a-c03", "a-c04", "a-c05"],
            "size": "64x64",
            "guided": True,
            "numerics": "plain",
            "sampler": "euler",
            "steps": MANY,
            "loras": [{"file": "x", "weight": 0.8}],
            "control": {"model": "lineart", "start": 0.0, "end": 0.8},
        }
    ]
    assert [(each["name"], each["state"], each["reason"]) for each in made["candidates"]] == [
        ("a-c02", "draw", {"kind": "new", "detail": ""}),
        ("a-c03", "draw", {"kind": "new", "detail": ""}),
        ("a-c04", "draw", {"kind": "new", "detail": ""}),
        ("a-c05", "draw", {"kind": "new", "detail": ""}),
        ("a-c01", "kept", {"kind": "done", "detail": ""}),
    ]
    assert made["seconds"] == 4.0


def test_five_thousand_panels_of_four_candidates_are_planned_whole() -> None:
    panels = [
        panel(
            f"p{number:04d}",
            candidates=4,
            size=(SQUARE, WIDE)[number % 2],
            loras=((), (lora("x"),))[number % 3 == 0],
        )
        for number in range(5000)
    ]
    made = plan(story(*panels, model=model()), Memory(), batch=8)

    assert made.pictures == 20_000
    assert sum(len(each.candidates) for each in made.batches) == 20_000
    assert made.groups == 4
