"""Why a candidate is drawn or kept, in the words that people read."""

from dataclasses import replace
from typing import Any

import pytest
from plan_stories import control, digest, lora, only_candidate, panel, past, story

from comicgen.plan import Memory, Past, Reason, decide
from comicgen.storyboard import Panel


def reason(now: Panel, before: Panel | None = None, **changes: object) -> Reason:
    """The decision about a panel that was done as `before` and is `now`."""
    drawn = only_candidate(story(before or now))
    memory = Memory(candidates={"p01-c01": past(drawn, **changes)})
    return decide(only_candidate(story(now)), memory, "here")


def test_a_candidate_without_a_past_is_new() -> None:
    assert decide(only_candidate(story(panel())), Memory()) == Reason("new")


def test_a_candidate_as_it_was_asked_for_and_there_is_done() -> None:
    assert reason(panel()) == Reason("done")
    assert not reason(panel()).draw


def test_a_picture_of_another_environment_is_kept_and_told_of() -> None:
    assert str(reason(panel(), environment="there")) == "done (environment differs)"


@pytest.mark.parametrize("state", ["failed", "missing", "damaged"])
def test_what_is_not_done_is_drawn_for_the_reason_that_the_folder_gives(state: str) -> None:
    assert str(reason(panel(), state=state, detail="because")) == f"{state} (because)"
    assert reason(panel(), state=state).draw


def test_a_done_candidate_that_was_asked_for_is_drawn_again() -> None:
    candidate = only_candidate(story(panel()))
    memory = Memory(candidates={"p01-c01": past(candidate)}, asked=frozenset({"p01-c01"}))

    assert decide(candidate, memory) == Reason("asked")


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"steps": 30}, "steps 20 -> 30"),
        ({"guidance": 7.5}, "guidance 7 -> 7.5"),
        ({"guidance": 7.0000001}, "guidance 7 -> 7.0000001"),
        ({"negative": "blurry"}, "negative absent -> 'blurry'"),
        ({"negative": ""}, "negative absent -> ''"),
        ({"prompt": "a\tfarmer\x1b"}, r"prompt 'a farmer on a beach' -> 'a\tfarmer\x1b'"),
        ({"sampler": "ddim", "steps": 8}, "steps 20 -> 8, sampler 'euler' -> 'ddim'"),
        ({"loras": (lora("m"),)}, f"loras [] -> [[{digest('m')[:8]} 0.8]]"),
        ({"seed": 8}, "seed 1600158176 -> 8"),
        (
            {"control": control()},
            f"control absent -> [{digest('lineart')[:8]} {digest('map')[:8]} 0.7 0 0.8]",
        ),
    ],
)
def test_a_change_names_each_field_old_and_new(changes: dict[str, Any], detail: str) -> None:
    assert reason(panel(**changes), panel()) == Reason("changed", detail)


def test_a_change_inside_control_names_only_what_differs() -> None:
    before, now = panel(control=control()), panel(control=control(weight=0.9, end=1))

    assert reason(now, before).detail == "control.weight 0.7 -> 0.9, control.end 0.8 -> 1"


def test_of_long_texts_the_part_that_differs_is_shown() -> None:
    long = "the quick brown fox jumps over the lazy dog while "
    detail = reason(panel(prompt=long + "it rains"), panel(prompt=long + "it snows")).detail

    assert detail == "prompt ...' while it snows' -> ...' while it rains'"


def test_an_added_precision_is_a_change() -> None:
    candidate = only_candidate(story(panel()))
    memory = Memory(candidates={"p01-c01": past(candidate)})
    now = only_candidate(story(panel(), precision="fp16"))

    assert str(decide(now, memory)) == "changed (precision absent -> 'fp16')"


def test_a_failure_that_was_changed_since_is_a_change() -> None:
    assert reason(panel(steps=8), panel(), state="failed", detail="NaN").kind == "changed"


def test_a_past_of_which_only_the_fingerprint_is_known_differs_without_detail() -> None:
    candidate = only_candidate(story(panel()))
    unlike = Past("done", "another", candidate.fields, "here")

    assert str(decide(candidate, Memory({"p01-c01": unlike}))) == "changed"
    assert decide(replace(candidate, fingerprint="another"), Memory({"p01-c01": unlike})).kind == (
        "done"
    )
