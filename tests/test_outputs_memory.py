"""The output folder remembers what was drawn, what failed and what was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sketch_run import (
    ENVIRONMENT,
    alone,
    candidates,
    draw,
    journal,
    manifest,
    memory_of,
    opened,
    panel,
    pictures,
    states,
    story,
)

from comicgen.engine import Drawn, Failed, Measured
from comicgen.outputs import Outputs, folder_for
from comicgen.plan import Selection, plan, request
from comicgen.sizes import Size
from comicgen.sketch import sketch
from comicgen.storyboard import Storyboard


class TestHistory:
    def test_the_picture_of_an_edited_prompt_is_kept(self, tmp_path: Path) -> None:
        before = story(tmp_path, panel("p01"), panel("p02"))
        draw(before)
        old = pictures(before)

        edited = story(tmp_path, panel("p01", prompt="a ship"), panel("p02"))
        result = draw(edited)

        now = pictures(edited)
        history = [content for name, content in now.items() if name.startswith("history/p01-c0")]
        assert result.drawn == 2
        assert sorted([old["p01/p01-c01.png"], old["p01/p01-c02.png"]]) == sorted(history)
        assert old["p02/p02-c01.png"] == now["p02/p02-c01.png"]

    def test_the_history_keeps_each_picture_once(self, tmp_path: Path) -> None:
        day, night = (
            story(tmp_path, panel("p01", prompt=prompt, candidates=1))
            for prompt in ("day", "night")
        )
        for storyboard in (day, night, day, night, day):
            draw(storyboard)

        history = [content for name, content in pictures(day).items() if name.startswith("history")]

        assert len(history) == len(set(history)) == 2

    def test_nothing_in_the_history_is_overwritten(self, tmp_path: Path) -> None:
        day, night = (
            story(tmp_path, panel("p01", prompt=prompt, candidates=1))
            for prompt in ("day", "night")
        )
        draw(day)
        draw(night)
        [kept] = (folder_for(day.path) / "history").iterdir()
        kept.write_bytes(b"retouched")

        draw(day)
        draw(night)

        names = [f"{kept.stem}-2.png", kept.name]
        assert names == sorted(file.name for file in kept.parent.glob(f"{kept.stem}*"))
        assert kept.read_bytes() == b"retouched"

    def test_a_picture_that_the_journal_does_not_know_is_kept(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path, panel("p01", candidates=1))
        own = folder_for(storyboard.path) / "p01" / "p01-c01.png"
        own.parent.mkdir(parents=True)
        own.write_bytes(b"the author's own")

        draw(storyboard)

        assert b"the author's own" in pictures(storyboard).values()

    def test_redrawing_the_same_keeps_nothing(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        before = pictures(storyboard)
        _ask(storyboard, "redo")

        assert draw(storyboard).drawn == 6
        assert before == pictures(storyboard)


def _ask(storyboard: Storyboard, kind: Any, *panels: str, count: int | None = None) -> None:
    with opened(storyboard) as outputs:
        asked = request(storyboard, outputs.memory, Selection(panels), kind, count)
        assert asked
        outputs.ask(asked)


class TestMemory:
    def test_a_failure_is_remembered_with_its_reason_until_it_is_drawn(
        self, tmp_path: Path
    ) -> None:
        storyboard = story(tmp_path)
        first, *_ = candidates(storyboard)
        with opened(storyboard) as outputs:
            outputs.fail(Failed(first, "not a number"), alone(first))

        past = memory_of(storyboard).candidates[first.name]

        assert (past.state, past.detail) == ("failed", "not a number")
        assert (first.fingerprint, ENVIRONMENT.label) == (past.fingerprint, past.environment)
        draw(storyboard)
        assert states(storyboard)[first.name] == "done"

    def test_what_was_asked_is_open_until_it_is_drawn(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        _ask(storyboard, "redo", "p01")

        asked = memory_of(storyboard)
        draw(storyboard)

        assert asked.asked == {"p01-c01", "p01-c02"}
        assert [request.kind for request in asked.requests] == ["redo"]
        assert (frozenset(), ()) == (memory_of(storyboard).asked, memory_of(storyboard).requests)

    def test_more_and_new_seeds_are_remembered_for_good(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        _ask(storyboard, "more", "p01", count=2)
        _ask(storyboard, "reseed", "p02")
        draw(storyboard)
        _ask(storyboard, "more", "p01", count=1)

        memory = memory_of(storyboard)

        assert dict(memory.more) == {"p01": 3}
        assert {"p02-c01", "p02-c02"} == set(memory.reseeds)
        assert [each.candidate.name for each in plan(storyboard, memory).drawn] == ["p01-c05"]

    def test_a_writer_remembers_what_it_wrote(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        folder = folder_for(storyboard.path)

        with Outputs.open(folder, storyboard, ENVIRONMENT) as outputs:
            assert memory_of(storyboard) == outputs.memory

    def test_pasts_carry_what_the_plan_estimates_with(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)

        past = memory_of(storyboard).candidates["p01-c01"]

        assert past.seconds == journal(storyboard, "done")[0]["seconds"]
        assert past.fields == manifest(storyboard)["candidates"][0]["fields"]


class TestNumerics:
    def test_what_was_decided_for_a_size_is_remembered(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        with opened(storyboard) as outputs:
            outputs.settle({Size(48, 32): "plain", Size(32, 32): "fused"})
            assert outputs.memory.sizes == {Size(48, 32): "plain", Size(32, 32): "fused"}

        assert memory_of(storyboard).sizes == {Size(48, 32): "plain", Size(32, 32): "fused"}
        assert memory_of(storyboard).numerics == "plain"

    def test_a_picture_and_a_failure_are_labelled_with_the_numerics_of_their_batch(
        self, tmp_path: Path
    ) -> None:
        storyboard = story(tmp_path)
        first, second, third, *_ = candidates(storyboard)
        fused = ENVIRONMENT.drawing("fused")
        folder = folder_for(storyboard.path)
        with Outputs.open(folder, storyboard, fused) as outputs:
            for candidate, kind in ((first, "fused"), (second, "plain")):
                batch = replace(alone(candidate), numerics=kind)
                drawn = Drawn(candidate, sketch(candidate), 1.0)
                outputs.keep(drawn, batch, outputs.encoding(drawn).whole())
            outputs.keep(Failed(third, "nan"), replace(alone(third), numerics="plain"), None)

        told = {line["candidate"]: line["environment"] for line in journal(storyboard)[1:]}
        assert told == {
            first.name: fused.label,
            second.name: ENVIRONMENT.label,
            third.name: ENVIRONMENT.label,
        }

    def test_what_an_engine_measured_is_not_of_the_folder(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        first, *_ = candidates(storyboard)
        with opened(storyboard) as outputs:
            outputs.keep(Measured("plain", alone(first).bucket, 1.0), alone(first), None)

        assert [line["event"] for line in journal(storyboard)] == ["head"]

    def test_how_long_a_file_is_is_remembered(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        known = memory_of(storyboard).candidates["p01-c01"]

        assert known.bytes == len(pictures(storyboard)["p01/p01-c01.png"])
