"""A prompt is written out whole, or what stands in its way is named."""

from pathlib import Path

import pytest
from stories import complaints, load_panel, load_story, panel_complaints

CAST = """
characters:
  mara: {prompt: 'a  farmer in a blue shirt'}
  tom: {prompt: 'a cat \\(red\\)'}
"""


def test_a_reference_writes_the_characters_words(tmp_path: Path) -> None:
    panel = load_panel(tmp_path, "prompt: '{mara} and {tom}, {mara}'", CAST)

    assert panel.prompt == "a farmer in a blue shirt and a cat (red), a farmer in a blue shirt"


def test_style_comes_after_a_comma_and_null_takes_it_away(tmp_path: Path) -> None:
    above = "defaults: {style: comic}"

    assert load_panel(tmp_path, "prompt: a", above).prompt == "a, comic"
    assert load_panel(tmp_path, "prompt: a\nstyle: ink", above).prompt == "a, ink"
    assert load_panel(tmp_path, "prompt: a\nstyle: null", above).prompt == "a"
    assert load_panel(tmp_path, "prompt: a\nstyle: ''", above).prompt == "a"


def test_white_space_is_folded(tmp_path: Path) -> None:
    assert load_panel(tmp_path, "prompt: |\n  a \t b\n\n  c\n\n").prompt == "a b c"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"\{mara\} \(word:1.2\) \<lora:x:1\>", "{mara} (word:1.2) <lora:x:1>"),
        (r"\{a\|b\} \$\$ back\\slash \n", r"{a|b} $$ back\slash \n"),
        ("(soft) [softer] ((softest)) :) 10:30", "(soft) [softer] ((softest)) :) 10:30"),
        ("shot at 2:35) and on", "shot at 2:35) and on"),
        ("[a|b], 5 $ a < b", "[a|b], 5 $ a < b"),
    ],
)
def test_signs_that_mean_nothing_here_or_are_escaped_are_text(
    tmp_path: Path, written: str, text: str
) -> None:
    assert text == load_panel(tmp_path, f"prompt: '{written}'").prompt


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("a (word:1.2)", "attention weights such as (word:1.2) are not supported; remove"),
        ("a ((b, c :.5 ) d)", "attention weights such as (word:.5) are not supported; remove"),
        ("<lora:noir:0.8> a", "'<lora:noir:0.8>' names a LoRA in the prompt; name its file under"),
        ("{red|blue} hat", "alternatives such as '{red|blue}' are not supported; choose one"),
        ("{2$$a|b}", "alternatives such as '{2$$a|b}' are not supported; choose one"),
        ("$$ a", r"$$ is a wildcard, which is not supported; write \$\$ for the signs"),
        ("{marra} a", "'{marra}' mentions no character of the storyboard; did you mean 'mara'?"),
        ("{zzz} a", "'{zzz}' mentions no character of the storyboard; known are mara, tom"),
        ("{} a", "'{}' mentions no character of the storyboard; known are"),
        ("a } b", r"a } has no partner; write \} for the sign itself"),
        ("a { b", r"a { has no partner; write \{ for the sign itself"),
        ("", "prompt is empty; write some text"),
        (" \t ", "prompt is empty; write some text"),
    ],
)
def test_what_other_programs_would_obey_is_refused_by_name(
    tmp_path: Path, written: str, sentence: str
) -> None:
    (complaint,) = panel_complaints(tmp_path, f"prompt: '{written}'", CAST)

    assert complaint.startswith(f"8:13: {sentence}")


def test_references_belong_in_panels_prompts_only(tmp_path: Path) -> None:
    found = complaints(
        tmp_path,
        """\
        defaults: {style: '{mara} style', negative: '{mara}'}
        characters: {mara: {prompt: a}, tom: {prompt: '{mara} too'}}
        panels: [{id: p, prompt: b}]
        """,
    )

    assert [":".join(line.split(":")[:2]) for line in found] == ["1:19", "1:45", "2:47"]
    assert all("mentions a character, which cannot be done here" in line for line in found)


def test_a_negative_prompt_without_guidance_is_refused_wherever_it_comes_from(
    tmp_path: Path,
) -> None:
    text = "with guidance {} the negative prompt has no effect; write negative: null, or guidance"
    above = "defaults: {negative: blurry}"

    (own,) = panel_complaints(tmp_path, "prompt: a\nnegative: b\nguidance: 1")
    (inherited,) = panel_complaints(tmp_path, "prompt: a\nguidance: 0.5", above)
    (shared,) = panel_complaints(tmp_path, "prompt: a", "defaults: {negative: b, guidance: 1}")

    assert own.startswith(f"6:15: {text.format(1)}")
    assert inherited.startswith(f"5:15: {text.format(0.5)}")
    assert shared.startswith(f"1:22: {text.format(1)}")
    assert load_panel(tmp_path, "prompt: a\nguidance: 1\nnegative: null", above).negative is None


def test_an_empty_negative_is_not_an_absent_one(tmp_path: Path) -> None:
    assert load_panel(tmp_path, "prompt: a\nnegative: ''").negative == ""
    assert load_panel(tmp_path, "prompt: a").negative is None


def test_a_prompt_too_long_for_the_encoders_names_the_first_word_cut(tmp_path: Path) -> None:
    above = f"defaults: {{style: {'very ' * 69}comical}}\ncharacters: {{m: {{prompt: {'a ' * 4}}}}}"

    (prompt,) = panel_complaints(tmp_path, "prompt: '{m} cat'", above)
    (negative,) = panel_complaints(tmp_path, f"prompt: a\nnegative: {'cat ' * 75}dog")

    assert prompt.startswith(
        "5:13: the prompt, with characters and style written in, is longer than"
    )
    assert prompt.endswith("than 75 tokens: it would end before 'comical'; shorten it")
    assert negative.startswith("5:15: the negative prompt is longer than 75 tokens")
    assert negative.endswith("it would end before 'dog'; shorten it")


def test_a_mistake_in_the_style_is_told_once(tmp_path: Path) -> None:
    panels = "".join(f"- {{id: p{n}, prompt: a}}\n" for n in range(9))

    found = complaints(tmp_path, f"defaults: {{style: (ink:2)}}\npanels:\n{panels}")

    assert len(found) == 1
    assert found[0].startswith("1:19: attention weights such as (word:2)")


def test_names_of_characters_and_references_are_compared_in_nfc(tmp_path: Path) -> None:
    above = "characters: {\u00e9ve: {prompt: a girl}}"

    assert load_panel(tmp_path, "prompt: '{e\u0301ve} runs'", above).prompt == "a girl runs"


def test_titles_and_captions_are_for_people_and_obey_no_grammar(tmp_path: Path) -> None:
    story = load_story(
        tmp_path,
        """\
        title: '  The {b|c}  Story '
        panels:
          - {id: p, prompt: a, title: (x:1.2), caption: "One $$\\nTwo {who}"}
        """,
    )

    assert story.title == "The {b|c} Story"
    assert (story.panels[0].title, story.panels[0].caption) == ("(x:1.2)", "One $$\nTwo {who}")


def test_characters_that_unicode_takes_for_one_are_refused(tmp_path: Path) -> None:
    text = """\
        characters:
          "\\u00e9": {prompt: a fox}
          "e\\u0301": {prompt: a bear}
        panels: [{id: p, prompt: a}]
        """

    (complaint,) = complaints(tmp_path, text)
    assert complaint.startswith("3:3: the character '\u00e9' is there twice")
