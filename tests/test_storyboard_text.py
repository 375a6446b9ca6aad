"""Files that are no storyboard are refused at once, and no text steers a terminal."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stories import complaints

from comicgen.errors import StoryboardError
from comicgen.storyboard import load, marked

SIGNS = "[]{}*&!|>'\"%@`#,?:-~<\\$ \n\t\x85\u200ba1é猫"


@pytest.fixture(params=["libyaml", "pure Python"], autouse=True)
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pure Python":
        monkeypatch.setattr(marked, "PARSER", yaml.BaseLoader)


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )

    (complaint,) = complaints(tmp_path, bomb)

    assert "aliases (*name) make this too large" in complaint


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "1:1: the file is empty; write panels:"),
        (b"# nothing\n", "1:1: the file is empty; write panels:"),
        (b"panels:\n  - \xff", "2:5: the file is not UTF-8; save it as UTF-8"),
        ("panels: 1".encode("utf-16"), "1:1: the file is UTF-16; save it as UTF-8"),
        (b"a: b\nc: \x1b[2J", "2:4: the file holds the control character U+001B; remove it"),
        (b"a: 1\n---\nb: 2\n", "2:1: a second document starts here; write one storyboard a file"),
        (b"- a\n", "1:1: a storyboard must be a mapping; write panels: and below it a list"),
        (b"a: &a [*a]\n", "1:8: *a stands for nothing before it; if it is text"),
        (b"- " * 50 + b"a", "1:43: lists and mappings are nested deeper than 20"),
        (b"a: " + b"x" * (16 << 20), "1:1: the file is larger than 16 MiB"),
    ],
)
def test_what_is_no_storyboard_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = tmp_path / "story.yaml"
    path.write_bytes(data)

    with pytest.raises(StoryboardError) as caught:
        load(path)

    (complaint,) = caught.value.complaints
    assert str(complaint).startswith(f"{path}:{sentence}")


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "story.yaml"
    path.write_bytes(b"\xef\xbb\xbfpanels:\r\n  - id: p\r\n    prompt: red # x\r\n")

    story = load(path)

    assert story.panels[0].prompt == "red"
    assert story.warnings[0].startswith("story.yaml:3:13:")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoryboardError, match=r"nowhere\.yaml' cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(StoryboardError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_no_control_character_reaches_a_message(tmp_path: Path) -> None:
    text = 'panels:\n- {id: "a\\e[2J", prompt: red, "k\\e": "\\a", steps: "\\0"}'

    found = complaints(tmp_path, text)

    assert "2:8: the text holds the control character U+001B; remove it" in found
    assert all(char.isprintable() for line in found for char in line)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_is_typed_ends_in_a_storyboard_or_in_complaints(
    tmp_path: Path, data: st.DataObject
) -> None:
    story = "title: a\ndefaults: {style: b}\npanels:\n- id: p\n  prompt: 'c'\n  control:\n"
    at = data.draw(st.integers(0, len(story)))
    typed = data.draw(st.text(SIGNS, min_size=1, max_size=8))
    path = tmp_path / "story.yaml"
    path.write_text(story[:at] + typed + story[at:], encoding="utf-8")

    try:
        said = " ".join(load(path).warnings)
    except StoryboardError as error:
        said = str(error)

    assert all(char.isprintable() or char == "\n" for char in said)
