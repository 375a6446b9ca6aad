"""The author's YAML means what it looks like, or the complaint says which quotes to add."""

from pathlib import Path

import pytest
import yaml
from stories import complaints, load_panel, load_story, panel_complaints

from comicgen.sizes import Size
from comicgen.storyboard import marked


@pytest.fixture(params=["libyaml", "pure Python"], autouse=True)
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pure Python":
        monkeypatch.setattr(marked, "PARSER", yaml.BaseLoader)


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        ("16:9", Size(320, 192)),
        ("9:16", Size(192, 320)),
        ("09:16", Size(192, 320)),
        ("3:4", Size(256, 384)),
        ("4:3", Size(384, 256)),
        ("1:1", Size(256, 256)),
        ("2:3", Size(256, 384)),
        ("1.91:1", Size(320, 192)),
    ],
)
@pytest.mark.parametrize("form", ["{}", "'{}'", '"{}"', "slash"])
def test_an_aspect_stays_a_ratio(tmp_path: Path, aspect: str, size: Size, form: str) -> None:
    written = aspect.replace(":", "/") if form == "slash" else form.format(aspect)

    assert size == load_panel(tmp_path, f"prompt: red\naspect: {written}").size


def test_21_9_is_a_ratio_that_the_embedded_model_lacks(tmp_path: Path) -> None:
    (complaint,) = panel_complaints(tmp_path, "prompt: red\naspect: 21:9")

    assert complaint.startswith("5:13: no trained size is near aspect 21:9")


@pytest.mark.parametrize(
    "word",
    ["no", "on", "yes", "off", "y", "n", "true", "010", "1_000", "1e-4", "2024-01-01", "=", "<<"],
)
def test_a_word_stays_text_where_text_is_wanted(tmp_path: Path, word: str) -> None:
    panel = load_panel(tmp_path, f"prompt: {word}\ncaption: {word}\nnegative: {word}")

    assert (word, word, word) == (panel.prompt, panel.caption, panel.negative)


@pytest.mark.parametrize("word", ["no", "on", "010", "1_000", "2024-01-01", "true"])
def test_a_word_stays_text_as_a_character(tmp_path: Path, word: str) -> None:
    above = f"characters:\n  {word}: {{prompt: a cat}}"

    assert load_panel(tmp_path, f"prompt: '{{{word}}} runs'", above).prompt == "a cat runs"


@pytest.mark.parametrize(
    "word", ["010", "0123", "08", "2024-01-01", "no", "1e3", "1_000", "第001格"]
)
def test_an_id_is_text_always(tmp_path: Path, word: str) -> None:
    assert word == load_story(tmp_path, f"panels: [{{id: {word}, prompt: red}}]").panels[0].id


def test_numbers_are_read_by_the_rules_of_yaml_1_2(tmp_path: Path) -> None:
    panel = load_panel(
        tmp_path, "prompt: a\nsteps: 020\nseed: 0x10\nguidance: 1e-4\nnegative: null"
    )

    assert (panel.steps, panel.seed, panel.guidance) == (20, 16, 1e-4)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "seed: 1_000",
            "seed must be a whole number from 0 to 4294967295, not '1_000'; write 1000",
        ),
        ("guidance: 7,5", "guidance must be a number from 0 to 100, not '7,5'; write 7.5"),
        ("guidance: .inf", "guidance must be a number from 0 to 100, not '.inf'"),
        ("guidance: .nan", "guidance must be a number from 0 to 100, not '.nan'"),
        ("guidance: 1e999", "guidance must be a number from 0 to 100, not '1e999'"),
        ("steps: 20.0", "steps must be a whole number from 1 to 150, not '20.0'"),
        ("steps: yes", "steps must be a whole number from 1 to 150, not 'yes'"),
        ("steps: 2:30", "steps must be a whole number from 1 to 150, not '2:30'"),
        ("candidates: 0", "candidates must be a whole number from 1 to 99, not '0'"),
    ],
)
def test_what_is_no_number_is_refused_with_its_cure(
    tmp_path: Path, line: str, sentence: str
) -> None:
    column = line.index(" ") + 2 + 4

    assert [f"5:{column}: {sentence}"] == panel_complaints(tmp_path, f"prompt: red\n{line}")


def test_seeds_reach_to_two_to_the_32_less_one(tmp_path: Path) -> None:
    assert load_panel(tmp_path, "prompt: red\nseed: 4294967295").seed == 2**32 - 1
    for seed in ("4294967296", "-5", "1.5", '"abc"', "9" * 5000):
        (complaint,) = panel_complaints(tmp_path, f"prompt: red\nseed: {seed}")

        assert complaint.startswith("5:11: seed must be a whole number from 0 to 4294967295, not")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a|b], red", "starts with [, which YAML reads as a list"),
        ("{a|b} red", "starts with {, which YAML reads as a mapping"),
        ("{mara} walks", "starts with {, which YAML reads as a mapping"),
        ("**x** red", "starts with *, which YAML reads as an alias"),
        ("@x", "starts with @, which YAML reads as a reserved sign"),
        ("`x`", "starts with `, which YAML reads as a reserved sign"),
        ("%x", "starts with %, which YAML reads as a directive"),
        ("& more", "starts with &, which YAML reads as an anchor"),
        ("| red", "starts with |, which YAML reads as a block of text"),
        ("- red", "starts with -, which YAML reads as a list item"),
        ('"Help" she cried', 'starts with ", which YAML reads as quoted text'),
        ("a, b: c", "holds a colon and a space, which YAML reads as a key"),
        ("it's: c", "holds a colon and a space, which YAML reads as a key"),
    ],
)
def test_text_that_yaml_cannot_read_is_shown_in_the_quotes_it_needs(
    tmp_path: Path, text: str, reason: str
) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    expected = f"the text {reason}; put it in single quotes: {quoted}"

    assert [f"4:13: {expected}"] == panel_complaints(tmp_path, f"prompt: {text}")
    assert text.startswith("{") or load_panel(tmp_path, f"prompt: {quoted}").prompt == text


@pytest.mark.parametrize("text", ["[a|b], red", "{a|b} red", "@x", "`x`", "%x"])
def test_list_items_are_explained_like_values(tmp_path: Path, text: str) -> None:
    (complaint,) = complaints(tmp_path, f"panels:\n  - {text}\n")

    assert complaint.startswith("2:5: the text starts with ")
    assert complaint.endswith(f"put it in single quotes: '{text}'")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "*x",
            "*x stands for nothing before it; if it is text, put it in single quotes, as in '*x'",
        ),
        ("&x red", "anchor &x is never used; if it is text, put it in single quotes"),
        ("!x red", "tag '!x': tags are not read; remove it, or put the text in single quotes"),
        (
            "!!python/object:os.system x",
            "tag 'tag:yaml.org,2002:python/object:os.system': tags are",
        ),
        (
            "{mara}",
            "prompt must be text, not a mapping; put text that holds { [ or a colon in single",
        ),
        (
            "[red]",
            "prompt must be text, not a list; put text that holds { [ or a colon in single quo",
        ),
        ("'red", "the quoted text \"'red\" is never closed; end it with '"),
        (
            r'"a \(b\)"',
            "a backslash in double quotes starts an escape that YAML lacks; "
            r"put it in single quotes, 'a \(b\)', or write a block (|)",
        ),
    ],
)
def test_text_that_yaml_would_misread_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (complaint,) = panel_complaints(tmp_path, f"prompt: {text}")

    assert complaint.startswith(f"4:13: {sentence}")


def test_a_panel_that_became_a_mapping_by_its_colon_is_told_to_use_quotes(tmp_path: Path) -> None:
    found = complaints(tmp_path, "panels:\n  - a, b: c\n")

    assert "2:5: panel 1 has the unknown key 'a, b'; known are" in found[-1]
    assert found[-1].endswith("text that holds a colon must be in single quotes")


def test_brackets_that_are_meant_but_break_off_are_not_called_text(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, "panels:\n  - {id: p, prompt: {mara} walks}\n")

    assert complaint.startswith(
        "2:28: the list or mapping in brackets that starts on line 2 breaks"
    )


def test_text_lost_in_a_comment_is_a_warning(tmp_path: Path) -> None:
    lines = "title: fine # t\npanels:\n- id: p1 # no text\n  prompt: red # hair\n  caption: #no1"
    story = load_story(tmp_path, lines)

    assert [w.split(";")[0] for w in story.warnings] == [
        "story.yaml:1:8: what follows # is no part of this title, but a comment",
        "story.yaml:4:11: what follows # is no part of this prompt, but a comment",
        "story.yaml:5:11: what follows # is no part of this caption, but a comment",
    ]
    assert story.panels[0].prompt == "red"
    assert load_panel(tmp_path, "prompt: 'red # hair'").prompt == "red # hair"
    assert load_panel(tmp_path, "prompt: red#hair").prompt == "red#hair"


def test_text_that_goes_on_after_a_comment_is_explained(tmp_path: Path) -> None:
    (complaint,) = panel_complaints(tmp_path, "prompt: red # hair\n  and more")

    assert "goes on with a text that ended at the # in the line before; put the whole" in complaint


def test_a_key_written_twice_names_both_lines(tmp_path: Path) -> None:
    found = complaints(tmp_path, "seed: 1\npanels:\n- {id: a, prompt: b, id: c}\nseed: 2\n")

    assert found == [
        "3:22: 'id' is written twice, on lines 3 and 3; keep one",
        "4:1: 'seed' is written twice, on lines 1 and 4; keep one",
    ]


@pytest.mark.parametrize("null", ["null", "~", "", "Null", "NULL"])
def test_a_plain_null_is_no_text_and_a_quoted_one_is(tmp_path: Path, null: str) -> None:
    above = "defaults: {negative: blurry}"

    assert load_panel(tmp_path, f"prompt: red\nnegative: {null}", above).negative is None
    assert null == load_panel(tmp_path, f"prompt: red\nnegative: '{null}'", above).negative
