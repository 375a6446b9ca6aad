"""What a candidate's seed and fingerprint depend on, and what they do not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_stories import control, digest, lora, model, only_candidate, panel, stories, story

from comicgen.errors import Place
from comicgen.plan import Memory, Reseed, every_candidate, fingerprint
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard

FULL = panel(negative="blurry", loras=(lora("a"), lora("b")), control=control(), seed=7)
STORY = story(FULL)


def seeds(storyboard: Storyboard, memory: Memory | None = None) -> dict[str, int]:
    return {each.name: each.seed for each in every_candidate(storyboard, memory or Memory())}


def prints(storyboard: Storyboard) -> dict[str, str]:
    return {each.name: each.fingerprint for each in every_candidate(storyboard, Memory())}


def with_panel(**changes: object) -> Storyboard:
    return story(replace(FULL, **changes))  # type: ignore[arg-type]


def test_candidates_count_up_from_the_panels_seed_and_wrap_at_32_bits() -> None:
    found = seeds(story(panel(seed=2**32 - 1, candidates=3)))

    assert found == {"p01-c01": 2**32 - 1, "p01-c02": 0, "p01-c03": 1}


def test_the_seed_of_a_panel_without_one_comes_from_storyboard_seed_and_id_for_ever() -> None:
    one = {"candidates": 1}

    assert seeds(story(panel("p01", **one), panel("p02", **one))) == {
        "p01-c01": 1600158176,
        "p02-c01": 1321665313,
    }
    assert seeds(story(panel(), seed=1)) != seeds(story(panel(), seed=0))


def test_a_reseed_holds_while_the_storyboards_own_seed_is_the_one_it_replaced() -> None:
    memory = Memory(reseeds={"p01-c02": Reseed(seed=99, instead_of=8)})

    assert seeds(story(panel(seed=7)), memory) == {"p01-c01": 7, "p01-c02": 99}
    assert seeds(story(panel(seed=5)), memory) == {"p01-c01": 5, "p01-c02": 6}


@pytest.mark.parametrize(
    "other",
    [
        story(FULL, model=model("other")),
        story(FULL, precision="fp16"),
        with_panel(loras=(lora("a"), lora("c"))),
        with_panel(loras=(lora("a"), lora("b", 0.81))),
        with_panel(loras=(lora("a"),)),
        with_panel(control=None),
        with_panel(control=control("depth")),
        with_panel(control=replace(control(), image_digest=digest("other map"))),
        with_panel(control=control(weight=0.71)),
        with_panel(control=control(start=0.1)),
        with_panel(control=control(end=0.9)),
        with_panel(prompt="a farmer on the beach"),
        with_panel(negative=""),
        with_panel(negative=None),
        with_panel(size=Size(96, 64)),
        with_panel(size=Size(64, 96)),
        with_panel(seed=8),
        with_panel(steps=21),
        with_panel(sampler="ddim"),
        with_panel(guidance=7.5),
    ],
)
def test_everything_asked_for_that_changes_pixels_changes_the_fingerprint(
    other: Storyboard,
) -> None:
    assert only_candidate(STORY).fingerprint != only_candidate(other).fingerprint


def test_the_recipe_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = only_candidate(STORY).fingerprint
    monkeypatch.setattr("comicgen.plan.candidates.RECIPE", -1)

    assert only_candidate(STORY).fingerprint != before


def test_no_negative_is_not_an_empty_one() -> None:
    assert only_candidate(with_panel(negative=None)).fields["negative"] is None
    assert only_candidate(with_panel(negative="")).fields["negative"] == ""


@pytest.mark.parametrize(
    "other",
    [
        replace(STORY, path=Path("/elsewhere/story.yaml"), title="A Story", warnings=("careful",)),
        story(FULL, model=replace(model(), written="./pocket", folder=Path("/moved"))),
        story(FULL, seed=3),
        with_panel(title="One", caption="She counts."),
        with_panel(place=Place(Path("other.yaml"), 90, 3)),
        with_panel(loras=(lora("b"), lora("a"))),
        with_panel(loras=tuple(replace(x, written="x", file=Path("x")) for x in FULL.loras)),
        with_panel(control=replace(control(), image=Path("/moved.png"))),
        with_panel(control=replace(control(), model=replace(model("lineart"), folder=Path("/m")))),
        with_panel(candidates=5),
        with_panel(guidance=7),
        with_panel(control=control(start=0)),
        with_panel(control=control(start=-0.0)),
        story(panel("p00"), FULL),
    ],
)
def test_nothing_else_changes_the_fingerprint(other: Storyboard) -> None:
    assert prints(STORY).items() <= prints(other).items()


@settings(deadline=None)
@given(stories(), st.data())
def test_new_panels_more_candidates_and_another_order_change_no_other_candidate(
    storyboard: Storyboard, data: st.DataObject
) -> None:
    panels = [replace(p, candidates=p.candidates + 2) for p in storyboard.panels]
    panels = data.draw(st.permutations([*panels, panel("inserted")]))

    assert prints(storyboard).items() <= prints(story(*panels)).items()


def test_a_fingerprint_can_be_made_again_from_journalled_fields() -> None:
    candidate = only_candidate(STORY)

    assert fingerprint(json.loads(json.dumps(candidate.fields))) == candidate.fingerprint
    assert json.loads(json.dumps(candidate.fields)) == candidate.fields


def test_precision_is_a_field_only_where_it_was_written() -> None:
    assert "precision" not in only_candidate(STORY).fields
    assert only_candidate(story(FULL, precision="fp16")).fields["precision"] == "fp16"


def test_fingerprints_stay_what_they_are_in_folders_that_people_have() -> None:
    assert fingerprint(only_candidate(STORY).fields) == (
        "46eb2be4513e2ab725d04ca9a5a6d57c22f7dd92c425d89acc0ec7c4c2cfb306"
    )
