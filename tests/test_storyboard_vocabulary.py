"""Words that the embedded model does not know are told of, once for a storyboard."""

import re
import shutil
from pathlib import Path

import pytest
from lora_files import write_peft
from stories import load_story, write_story

from comicgen import pocket
from comicgen.storyboard import load
from comicgen.weights import read_model

CURE = "comicgen/pocket/README.md#what-it-draws names what it knows"


def unknown(folder: Path, text: str) -> str:
    """What the one warning says of the words, without its place and cure; "" if there is none."""
    return "".join(
        re.sub(r"^story.yaml:\d+:\d+: the embedded model does not know ", "", warning)
        for warning in load_story(folder, text).warnings
    ).removesuffix(f"; {CURE}")


def unknown_in(folder: Path, prompt: str) -> list[str]:
    """The words of a prompt that are not known."""
    path = write_story(folder, f"panels: [{{id: p, prompt: {prompt!r}}}]")
    return re.findall(r"""['"](\S+)['"] \(p\)""", "".join(load(path).warnings))


def test_the_words_are_lower_case_sorted_and_each_once() -> None:
    lines = (pocket.MODEL.parent / "words.txt").read_text(encoding="utf-8").splitlines()

    assert lines == sorted(set(lines))
    assert all(re.fullmatch("[a-z]+( sophie)?", line) for line in lines)
    assert pocket.words() >= {"fox", "forest", "night"}
    assert pocket.words(frozenset(["sophie"])) - pocket.words() >= {"sophie", "laughing"}
    assert len(pocket.words(frozenset(["sophie"]))) == len(lines)


def test_each_unknown_word_is_named_with_its_panels_where_the_first_stands(tmp_path: Path) -> None:
    story = load_story(
        tmp_path,
        """\
        panels:
          - {id: p01, prompt: fox}
          - {id: p02, prompt: fox zzfox forest}
          - {id: p03, prompt: zzowl zzfox}
        """,
    )

    assert story.warnings == (
        "story.yaml:3:5: the embedded model does not know "
        f"'zzfox' (p02, p03), 'zzowl' (p03); {CURE}",
    )


def test_characters_style_and_negative_count_as_they_are_written_in(tmp_path: Path) -> None:
    text = """\
        defaults: {style: zzstyle, negative: zznegative}
        characters: {m: {prompt: zzfox}, nobody: {prompt: zznobody}}
        panels:
          - {id: p01, prompt: '{m} night'}
          - {id: p02, prompt: fox, style: null, negative: null}
        """

    assert unknown(tmp_path, text) == "'zzfox' (p01), 'zzstyle' (p01), 'zznegative' (p01)"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("FOX, Forest (night); fox-forest 123 fox's fox\N{RIGHT SINGLE QUOTATION MARK}s 'fox'", []),
        ("2zzfox3 256x256 1st 80s 4k zzred-fox T-shirt x", ["zzred"]),
        ("Zzfox's zzfox ZZFOX", ["zzfox"]),
        ("zzdon't ''' 's", ["zzdon't"]),
        ("fox`s fox\N{ACUTE ACCENT}s fox\N{MODIFIER LETTER APOSTROPHE}s fox\N{PRIME}s", []),
        ("caf\u00e9 cafe\u0301", ["caf\u00e9"]),
        ("fox 森林里的狐狸\N{FULLWIDTH COMMA}夜晚", ["森林里的狐狸", "夜晚"]),
        ("लोमड़ी лиса renard-é", ["लोमड़ी", "лиса", "renard", "é"]),
        ("fox \N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16} \N{FOX FACE} 4", []),
    ],
)
def test_a_word_is_a_run_of_letters_of_any_script(
    tmp_path: Path, prompt: str, words: list[str]
) -> None:
    assert unknown_in(tmp_path, prompt) == words


def test_of_many_words_and_panels_the_first_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    words = [f"zz{a}{b}" for a in "abcde" for b in "abcde"]
    panels = "".join(f"- {{id: p{n}, prompt: zzfox {words[n]}}}\n" for n in range(25))

    told = unknown(tmp_path, f"panels:\n{panels}")

    assert told.startswith("'zzfox' (p0, p1, p2 and 22 more), 'zzaa' (p0), 'zzab' (p1), ")
    assert told.endswith("'zzca' (p10) and 14 more")


def test_only_the_embedded_model_has_known_words_whatever_path_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(pocket.MODEL)
    shutil.copytree(pocket.MODEL, tmp_path / "copied")
    text = "model: {}\npanels: [{{id: p, prompt: zzfox}}]"

    assert unknown(tmp_path, text.format("./linked")) == "'zzfox' (p)"
    assert unknown(tmp_path, text.format("./copied")) == ""


def test_a_panel_with_a_lora_of_one_s_own_is_not_asked_about_its_words(tmp_path: Path) -> None:
    write_peft(tmp_path / "own.safetensors", read_model(pocket.MODEL))
    text = "panels: [{{id: p, prompt: zzfox, loras: [{{file: {}}}]}}]"

    assert unknown(tmp_path, text.format("own.safetensors")) == ""
    assert unknown(tmp_path, text.format("noir")) == "'zzfox' (p)"
    assert unknown(tmp_path, text.format(pocket.lora("noir"))) == "'zzfox' (p)"


def test_the_words_of_a_shipped_lora_are_known_where_it_is_worn(tmp_path: Path) -> None:
    text = "panels: [{{id: p, prompt: laughing sophie in a forest{}}}]"

    assert unknown(tmp_path, text.format("")) == "'laughing' (p), 'sophie' (p)"
    assert unknown(tmp_path, text.format(", loras: [{file: noir}]")) == (
        "'laughing' (p), 'sophie' (p)"
    )
    assert unknown(tmp_path, text.format(", loras: [{file: sophie}]")) == ""


def test_signs_that_cannot_be_seen_are_no_part_of_a_word(tmp_path: Path) -> None:
    path = write_story(tmp_path, 'panels: [{id: p, prompt: "fo\\u00adrest fox\\ufe0f"}]')

    assert load(path).warnings == ()


def test_a_prompt_s_invisible_signs_do_not_reach_the_warning(tmp_path: Path) -> None:
    path = write_story(tmp_path, 'panels: [{id: p, prompt: "zz\\u202efox zz\\u200bowl"}]')

    (warning,) = load(path).warnings

    assert warning.isprintable()
