"""What others put into an output folder, or in its place, is neither lost nor in the way."""

import os
from pathlib import Path

import pytest
from sketch_run import draw, memory_of, opened, states, story

from comicgen.errors import OutputError
from comicgen.outputs import folder_for, read_memory, refuse_unusable
from comicgen.storyboard import Storyboard


def picture(storyboard: Storyboard) -> Path:
    return folder_for(storyboard.path) / "p01" / "p01-c01.png"


def test_the_manifest_of_another_program_is_left_alone(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    folder = folder_for(storyboard.path)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"name": "a web app"}')

    for look in (memory_of, draw):
        with pytest.raises(OutputError, match=r"has a manifest\.json but no journal\.jsonl"):
            look(storyboard)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    assert (folder / "manifest.json").read_text() == '{"name": "a web app"}'


def test_files_of_other_names_are_no_hindrance(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    picture(storyboard).parent.mkdir(parents=True)
    note = picture(storyboard).with_name("notes.txt")
    note.write_text("mine")

    assert draw(storyboard).drawn == 6
    assert note.read_text() == "mine"


def test_a_folder_in_the_place_of_a_picture_moves_into_the_history(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    history = folder_for(storyboard.path) / "history"
    draw(storyboard)
    for content in ("first", "second"):
        picture(storyboard).unlink()
        picture(storyboard).mkdir()
        (picture(storyboard) / content).touch()

        assert states(storyboard)["p01-c01"] == "damaged"
        assert draw(storyboard).drawn == 1
    assert (history / "p01-c01-folder.png" / "first").exists()
    assert (history / "p01-c01-folder-2.png" / "second").exists()


@pytest.mark.parametrize("target", ["p01-c01.png", "nowhere"])
def test_a_link_to_nothing_in_the_place_of_a_picture_is_replaced(
    tmp_path: Path, target: str
) -> None:
    storyboard = story(tmp_path)
    draw(storyboard)
    picture(storyboard).unlink()
    picture(storyboard).symlink_to(target)

    assert states(storyboard)["p01-c01"] in ("missing", "damaged")
    assert draw(storyboard).drawn == 1
    assert not picture(storyboard).is_symlink()


def test_a_pipe_in_the_place_of_a_picture_is_not_waited_for(tmp_path: Path) -> None:
    storyboard = story(tmp_path)
    draw(storyboard)
    picture(storyboard).unlink()
    os.mkfifo(picture(storyboard))

    assert states(storyboard)["p01-c01"] == "damaged"
    assert draw(storyboard).drawn == 1


def test_a_link_to_itself_is_no_output_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    storyboard = story(tmp_path)

    with pytest.raises(OutputError, match="cannot be used: Too many levels"):
        read_memory(folder_for(storyboard.path, tmp_path / "loop"), storyboard)


@pytest.mark.parametrize("name", ["..yaml", "...yaml"])
def test_a_storyboard_whose_name_is_dots_needs_an_output(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="has no name for an output folder; rename it"):
        folder_for(tmp_path / name)
    assert folder_for(tmp_path / name, tmp_path / "here") == tmp_path / "here"


def test_who_draws_is_told_although_the_note_about_it_is_spoilt(tmp_path: Path) -> None:
    storyboard = story(tmp_path)

    with opened(storyboard):
        (folder_for(storyboard.path) / ".writer").write_bytes(b"\xff")
        with pytest.raises(OutputError, match="another render"):
            refuse_unusable(folder_for(storyboard.path))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)

    with pytest.raises(OutputError, match=rf"no permission to write \({tmp_path}\)"):
        refuse_unusable(tmp_path / "outputs" / "story")
    assert not list(tmp_path.iterdir())
