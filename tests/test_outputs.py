"""The output folder: where it is, whose it is, what it keeps."""

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from sketch_run import (
    draw,
    journal,
    memory_of,
    opened,
    states,
    story,
)

from comicgen.errors import OutputError
from comicgen.outputs import folder_for, read_memory
from comicgen.plan import Memory


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


class TestPlace:
    def test_storyboards_draw_beside_their_folder(self, tmp_path: Path) -> None:
        demo = tmp_path / "storyboards" / "demo.yaml"

        assert tmp_path / "outputs" / "demo" == folder_for(demo)

    def test_another_storyboard_draws_beside_itself(self, tmp_path: Path) -> None:
        assert tmp_path / "outputs" / "story" == folder_for(tmp_path / "story.yaml")

    @pytest.mark.parametrize("spelling", ["demo.yaml", "../storyboards/demo.yaml", "./demo.yaml"])
    def test_the_current_folder_does_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
    ) -> None:
        (tmp_path / "storyboards").mkdir()
        monkeypatch.chdir(tmp_path / "storyboards")

        assert tmp_path / "outputs" / "demo" == folder_for(Path(spelling))

    def test_the_option_overrides_it(self, tmp_path: Path) -> None:
        assert tmp_path / "here" == folder_for(Path("storyboards/demo.yaml"), tmp_path / "here")


class TestOwner:
    def test_another_storyboard_of_the_same_name_is_refused_and_nothing_is_written(
        self, tmp_path: Path
    ) -> None:
        first = story(tmp_path, name="story.yaml")
        draw(first)
        second = story(tmp_path, name="story.yml")
        before = files(tmp_path)

        with pytest.raises(OutputError, match=r"belongs to the storyboard .*/story\.yaml"):
            draw(second)
        with pytest.raises(OutputError, match=r"rename .*/story\.yml, or give --output"):
            memory_of(second)
        assert before == files(tmp_path)

    def test_a_storyboard_of_another_name_is_refused_although_the_first_is_gone(
        self, tmp_path: Path
    ) -> None:
        first = story(tmp_path, name="first.yaml")
        draw(first)
        first.path.unlink()

        with pytest.raises(OutputError, match="belongs to the storyboard"):
            read_memory(folder_for(first.path), story(tmp_path, name="second.yaml"))

    def test_a_project_that_moved_goes_on(self, tmp_path: Path) -> None:
        draw(story(tmp_path / "old" / "storyboards"))
        (tmp_path / "old").rename(tmp_path / "new")

        moved = story(tmp_path / "new" / "storyboards")

        assert {"done"} == set(states(moved).values())

    def test_a_storyboard_that_moved_away_from_its_folder_goes_on(self, tmp_path: Path) -> None:
        here = story(tmp_path / "here")
        draw(here)
        moved = story(tmp_path / "there")
        here.path.unlink()

        memory = read_memory(folder_for(here.path), moved)

        assert {"done"} == {past.state for past in memory.candidates.values()}


class TestLock:
    def test_a_second_render_is_refused_and_told_who_is_drawing(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        holder = f"process {os.getpid()} on {socket.gethostname()}"

        with opened(storyboard):
            for _ in range(2):
                with pytest.raises(OutputError, match=rf"another render \({holder}\) is drawing"):
                    draw(storyboard)
            assert journal(storyboard, "begun") == []
        assert draw(storyboard).drawn == 6

    def test_reading_needs_no_lock(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)

        with opened(storyboard):
            assert states(storyboard) == {}


class TestUnusable:
    def test_a_folder_below_a_file_is_refused_in_one_sentence(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        (tmp_path / "outputs").write_text("not a folder")

        with pytest.raises(OutputError, match="cannot be used: Not a directory"):
            draw(storyboard)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_without_permission_is_refused(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        (tmp_path / "outputs").mkdir(mode=0o555)

        with pytest.raises(OutputError, match="cannot be used: Permission denied"):
            draw(storyboard)

    def test_what_the_system_refuses_is_said_in_one_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_only(*_: Any, **__: Any) -> None:
            raise OSError(30, "Read-only file system", "outputs")

        monkeypatch.setattr(os, "mkdir", read_only)

        with pytest.raises(OutputError, match="cannot be used: Read-only file system") as refused:
            draw(story(tmp_path))
        assert refused.value.exit_code == 2

    def test_a_damaged_journal_is_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        folder = folder_for(storyboard.path)
        draw(storyboard)
        (folder / ".lock").unlink()
        lines = (folder / "journal.jsonl").read_bytes().split(b"\n")
        (folder / "journal.jsonl").write_bytes(b"\n".join([*lines[:4], lines[4][3:], *lines[5:]]))
        before = files(tmp_path)

        with pytest.raises(OutputError, match=r"journal\.jsonl:5"):
            draw(storyboard)
        assert before == files(tmp_path)


class TestFiles:
    def test_nothing_is_remembered_or_created_before_the_first_run(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)

        assert Memory() == memory_of(storyboard)
        assert files(tmp_path) == {"story.yaml"}

    def test_a_picture_is_done_until_its_file_is_gone_or_differs(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        gone, short, other, touched, *_ = folder_for(storyboard.path).glob("p*/*.png")
        gone.unlink()
        short.write_bytes(short.read_bytes()[:-1])
        content = bytearray(other.read_bytes())
        content[-20] ^= 1
        other.write_bytes(content)
        touched.touch()

        found = states(storyboard)

        assert (found.pop(gone.stem), found.pop(short.stem)) == ("missing", "damaged")
        assert found.pop(other.stem) == "damaged"
        assert found[touched.stem] == "done"
        assert {"done"} == set(found.values())
        assert draw(storyboard).drawn == 3
        assert {"done"} == set(states(storyboard).values())

    def test_a_copied_folder_is_done(self, tmp_path: Path) -> None:
        draw(story(tmp_path / "here"))
        shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copy)

        assert {"done"} == set(states(story(tmp_path / "there")).values())

    def test_what_an_interrupted_write_left_is_removed(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        folder = folder_for(storyboard.path)
        for left in (folder / ".comicgen-manifest.json", folder / "p01" / ".comicgen-p01-c01.png"):
            left.write_bytes(b"half")

        draw(storyboard)

        assert not list(folder.rglob(".comicgen-*"))

    def test_a_manifest_that_was_lost_or_is_old_is_written_anew(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path)
        draw(storyboard)
        path = folder_for(storyboard.path) / "manifest.json"
        content = path.read_bytes()

        for lost in (path.unlink, lambda: path.write_bytes(b"{}")):
            lost()
            with opened(storyboard):
                pass
            assert content == path.read_bytes()

    def test_the_head_names_storyboard_numerics_and_version(self, tmp_path: Path) -> None:
        storyboard = story(tmp_path / "storyboards")
        draw(storyboard)

        assert journal(storyboard)[0] == {
            "event": "head",
            "storyboard": "story",
            "path": "../../storyboards/story.yaml",
            "numerics": "plain",
            "comicgen": "0.1.0",
            "format": 1,
        }
