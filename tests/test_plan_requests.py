"""What --redo, --reseed and --more write down, and that a command given again goes on."""

import json
from dataclasses import replace
from typing import Literal

import pytest
from plan_stories import after, panel, past, remembered, story

from comicgen.errors import CommandError
from comicgen.plan import Memory, Request, Reseed, Selection, every_candidate, plan, request

Kind = Literal["redo", "reseed", "more"]

STORY = story(panel("a"), panel("b", seed=7))
ALL = ("a-c01", "a-c02", "b-c01", "b-c02")


def drawn(memory: Memory, selection: Selection = Selection()) -> list[str]:  # noqa: B008 - frozen
    return [each.candidate.name for each in plan(STORY, memory, selection).drawn]


def seeds(memory: Memory) -> dict[str, int]:
    return {each.name: each.seed for each in every_candidate(STORY, memory)}


def test_redo_draws_the_same_candidates_with_the_same_fingerprints() -> None:
    memory = remembered(STORY)
    asked = request(STORY, memory, Selection(("b",)), "redo")
    made = plan(STORY, after(memory, asked))

    assert asked == Request("redo", ("b",), names=("b-c01", "b-c02"))
    assert [str(each.reason) for each in made.drawn] == ["asked", "asked"]
    assert {each.candidate.fingerprint for each in made.drawn} <= {
        past.fingerprint for past in memory.candidates.values()
    }


def test_reseed_gives_new_seeds_to_the_chosen_candidate_only() -> None:
    memory = remembered(STORY)
    asked = request(STORY, memory, Selection(("b",), 2), "reseed")
    assert asked

    now = seeds(after(memory, asked))
    assert asked.reseeds == {"b-c02": Reseed(now["b-c02"], instead_of=8)}
    assert now["b-c02"] != 8
    assert now | {"b-c02": 8} == seeds(memory)
    assert drawn(after(memory, asked)) == ["b-c02"]


def test_reseeding_twice_gives_a_third_seed_and_still_replaces_the_storyboards_own() -> None:
    one = Selection(("b",), 1)
    first = after(Memory(), request(STORY, Memory(), one, "reseed"), "b-c01")
    second = after(first, request(STORY, first, one, "reseed"), "b-c01")

    assert len({7, seeds(first)["b-c01"], seeds(second)["b-c01"]}) == 3
    assert second.reseeds["b-c01"].instead_of == 7


def test_the_same_reseed_in_another_folder_gives_the_same_seed() -> None:
    assert request(STORY, Memory(), Selection(), "reseed") == request(
        STORY, remembered(STORY), Selection(), "reseed"
    )


def test_more_adds_candidates_behind_those_of_earlier_requests() -> None:
    whole, one = Selection(), Selection(("b",))
    memory = after(remembered(STORY), request(STORY, Memory(), whole, "more", 1), "a-c03", "b-c03")
    asked = request(STORY, memory, one, "more", 2)
    assert asked

    assert asked.names == ("b-c04", "b-c05")
    assert asked.more == {"b": 2}
    assert after(memory, asked).more == {"a": 1, "b": 3}
    assert drawn(after(memory, asked)) == ["a-c03", "b-c03", "b-c04", "b-c05"]


def test_more_changes_no_other_candidate() -> None:
    memory = after(Memory(), request(STORY, Memory(), Selection(), "more", 3))

    assert seeds(Memory()).items() <= seeds(memory).items()


@pytest.mark.parametrize(("kind", "count"), [("redo", None), ("reseed", None), ("more", 1)])
def test_an_interrupted_command_given_again_goes_on_and_a_finished_one_starts_anew(
    kind: Kind, count: int | None
) -> None:
    def ask(memory: Memory) -> Request | None:
        return request(STORY, memory, Selection(("b",)), kind, count)

    asked = ask(Memory())
    assert asked
    interrupted = after(remembered(STORY), asked, asked.names[0] if not count else "")
    finished = after(interrupted, None, *asked.names)

    assert ask(interrupted) is None
    again = ask(finished)
    assert again is not None
    assert (again == asked) == (kind == "redo")


def test_more_goes_on_until_its_last_candidate_has_a_past() -> None:
    memory = after(Memory(), request(STORY, Memory(), Selection(("b",)), "more", 2))
    every = {each.name: past(each) for each in every_candidate(STORY, memory)}
    half = replace(memory, candidates={name: every[name] for name in (*ALL, "b-c03")})

    assert request(STORY, half, Selection(("b",)), "more", 2) is None
    assert drawn(half) == ["b-c04"]
    assert request(STORY, replace(half, candidates=every), Selection(("b",)), "more", 2)


def test_another_command_than_the_open_one_is_its_own_request() -> None:
    failed = past(every_candidate(STORY, Memory())[3], "failed")
    memory = Memory({**remembered(STORY).candidates, "b-c02": failed})
    memory = after(memory, request(STORY, Memory(), Selection(("b",)), "redo"))

    assert request(STORY, memory, Selection(("b",)), "redo") is None
    assert request(STORY, memory, Selection(), "redo") is not None
    assert request(STORY, memory, Selection(("b",), 1), "redo") is not None
    assert request(STORY, memory, Selection(("b",)), "reseed") is not None
    assert request(STORY, memory, Selection(("b",), failed=True), "redo") is not None


def test_panels_given_in_another_order_or_twice_are_the_same_command() -> None:
    memory = after(remembered(STORY), request(STORY, Memory(), Selection(("a", "b")), "redo"))

    assert request(STORY, memory, Selection(("b", "a", "b")), "redo") is None


def test_a_request_of_which_only_lost_panels_are_left_is_not_open() -> None:
    longer = story(*STORY.panels, panel("lost"))
    memory = after(remembered(longer), request(longer, Memory(), Selection(), "redo"), *ALL)

    assert memory.asked == {"lost-c01", "lost-c02"}
    assert request(STORY, memory, Selection(), "redo") is not None


def test_reseeding_the_failed_names_only_those() -> None:
    every = {each.name: each for each in every_candidate(STORY, Memory())}
    memory = Memory({**remembered(STORY).candidates, "b-c02": past(every["b-c02"], "failed")})
    asked = request(STORY, memory, Selection(failed=True), "reseed")

    assert asked
    assert asked.names == ("b-c02",)
    assert request(STORY, remembered(STORY), Selection(failed=True), "reseed") is None


def test_what_was_asked_and_not_selected_now_waits() -> None:
    memory = after(remembered(STORY), request(STORY, Memory(), Selection(("b",)), "redo"))

    assert drawn(memory, Selection(("a",))) == []
    assert len(plan(STORY, memory, Selection(("a",))).waiting) == 2


@pytest.mark.parametrize("kind", ["redo", "reseed", "more"])
def test_a_request_comes_back_from_the_journal_as_it_was(kind: Kind) -> None:
    asked = request(STORY, Memory(), Selection(("a",)), kind, 2 if kind == "more" else None)
    assert asked

    assert Request.from_json(json.loads(json.dumps(asked.to_json()))) == asked


@pytest.mark.parametrize(
    ("selection", "count", "message"),
    [
        (Selection(), 0, "--more 0: must add one candidate or more"),
        (Selection(candidate=1), 1, "leave out --candidate"),
        (Selection(failed=True), 1, "leave out --failed"),
        (Selection(("c",)), 1, "the storyboard has no panel 'c'"),
    ],
)
def test_more_of_what_cannot_be_is_refused(selection: Selection, count: int, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        request(STORY, Memory(), selection, "more", count)
    assert message in str(caught.value)


def test_redo_of_a_number_that_is_not_there_is_refused() -> None:
    with pytest.raises(CommandError):
        request(STORY, Memory(), Selection(("a",), 3), "redo")
