"""Every mistake of a storyboard is told at once, each with its place and its cure."""

from pathlib import Path

import pytest
from stories import complaints, load_panel, load_story, panel_complaints, write_story

from comicgen.errors import Place, StoryboardError
from comicgen.sizes import Size
from comicgen.storyboard import SAMPLERS, load


def test_many_mistakes_come_at_once_in_order_with_exact_places(tmp_path: Path) -> None:
    text = """\
    titel: The Lighthouse Keeper
    defaults: {aspect: 3:4, steps: 2000, sampler: heun}
    characters:
      mara: {prompt: a farmer, lora: []}
    panels:
      - id: p01
        prompt: "{maria} walking"
        size: 1000x563
        seed: 1_000
        control: {model: linart, image: maps/x.png, weight: 11, start: .9, end: 0.5}
        loras: [{file: noir-2}, {file: x.safetensors, wieght: 1}]
      - {id: P01, steps: many}
      - red
    """

    found = complaints(tmp_path, text)

    assert [line.split(";")[0].split(" (")[0] for line in found] == [
        "1:1: the storyboard has the unknown key 'titel'",
        "2:32: steps must be a whole number from 1 to 150, not '2000'",
        "2:47: sampler 'heun' is not supported",
        "4:28: character 'mara' has the unknown key 'lora'",
        "7:13: '{maria}' mentions no character of the storyboard",
        "8:11: size 1000x563 must be multiples of 8",
        "9:11: seed must be a whole number from 0 to 4294967295, not '1_000'",
        "10:22: panel 'p01': no ControlNet called 'linart' is shipped",
        "10:37: panel 'p01': control image 'maps/x.png' is not there",
        "10:57: weight must be a number from 0 to 10, not '11'",
        "10:77: start 0.9 must be less than end 0.5",
        "11:20: no LoRA called 'noir-2' is shipped",
        "11:36: LoRA 'x.safetensors' is not there",
        "11:51: loras item 2 has the unknown key 'wieght'",
        "12:5: panel 2 has no prompt",
        "12:10: ids 'p01' and 'P01', on lines 6 and 12, name the same folder on some systems",
        "12:22: steps must be a whole number from 1 to 150, not 'many'",
        "13:5: panel 3 must be a mapping, not text 'red'",
    ]


def test_each_complaint_is_a_value_with_place_and_cure(tmp_path: Path) -> None:
    path = write_story(tmp_path, "panels:\n- {id: p, promt: red}\n")

    with pytest.raises(StoryboardError) as caught:
        load(path)

    missing, unknown = caught.value.complaints
    assert missing.place == Place(path, 2, 3)
    assert (unknown.place, unknown.cure) == (Place(path, 2, 11), "did you mean 'prompt'?")
    assert str(unknown).startswith(f"{path}:2:11: panel 1 has the unknown key 'promt'; did you")


@pytest.mark.parametrize(
    ("id_", "reason"),
    [
        ("CON", "is a device on Windows"),
        ("lpt9", "is a device on Windows"),
        ("a/b", "may hold letters, digits, - and _ only"),
        ("..", "may hold letters, digits, - and _ only"),
        ("a b", "may hold letters, digits, - and _ only"),
        ("p.1", "may hold letters, digits, - and _ only"),
        ("'猫😀'", "may hold letters, digits, - and _ only"),
        ("字" * 90, "is longer than 64 bytes in UTF-8"),
        ("a" * 65, "is longer than 64 bytes in UTF-8"),
        ("-p", "must start with a letter or digit"),
        ("_p", "must start with a letter or digit"),
        ("History", "is the name of a folder that comicgen keeps"),
        ("''", "may hold letters, digits, - and _ only"),
    ],
)
def test_an_id_that_cannot_be_a_folder_is_refused(tmp_path: Path, id_: str, reason: str) -> None:
    (complaint,) = complaints(tmp_path, f"panels: [{{id: {id_}, prompt: red}}]")

    assert complaint.startswith("1:15: id ")
    assert reason in complaint


def test_an_id_that_is_null_is_empty(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, "panels: [{id: null, prompt: red}]")

    assert complaint == "1:11: id is empty; write its text"


@pytest.mark.parametrize("id_", ["第001格", "p-01_b", "a" * 64, "字" * 21, "Éclair", "0"])
def test_an_id_may_be_any_word_of_64_bytes(tmp_path: Path, id_: str) -> None:
    assert id_ == load_story(tmp_path, f"panels: [{{id: {id_}, prompt: red}}]").panels[0].id


def test_ids_are_unique_in_nfc_and_in_any_case(tmp_path: Path) -> None:
    text = "panels:\n- {id: é, prompt: a}\n- {id: e\u0301, prompt: a}\n- {id: É, prompt: a}\n"
    same = "panels:\n- {id: p010, prompt: a}\n- {id: p010, prompt: a}\n"

    assert [line.split(":")[0] for line in complaints(tmp_path, text)] == ["3", "4"]
    assert complaints(tmp_path, same) == [
        "3:8: id 'p010' is used twice, on lines 2 and 3; choose another"
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Euler", "euler"),
        ("EULER A", "euler a"),
        ("euler_a", "euler a"),
        ("DPM++ 2M", "dpm++ 2m"),
        ("dpmpp_2m", "dpm++ 2m"),
        ("DPM++ 2M Karras", "dpm++ 2m karras"),
        ("dpmpp_2m_karras", "dpm++ 2m karras"),
        ("DDIM", "ddim"),
        ("UniPC", "unipc"),
    ],
)
def test_samplers_are_read_in_their_usual_spellings(
    tmp_path: Path, written: str, name: str
) -> None:
    assert name == load_panel(tmp_path, f"prompt: a\nsampler: {written}").sampler
    assert name in SAMPLERS


@pytest.mark.parametrize(
    "name", ["Heun", "DPM++ SDE Karras", "DPM++ 2M SDE", "dpm2 a", "Euler Karras", "DPM adaptive"]
)
def test_known_samplers_that_we_lack_are_refused_with_the_list_of_ours(
    tmp_path: Path, name: str
) -> None:
    assert panel_complaints(tmp_path, f"prompt: a\nsampler: {name}") == [
        f"5:14: sampler '{name}' is not supported; "
        "choose one of euler, euler a, dpm++ 2m, dpm++ 2m karras, ddim, unipc"
    ]


def test_a_misspelt_sampler_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (near,) = panel_complaints(tmp_path, "prompt: a\nsampler: eulr")
    (far,) = panel_complaints(tmp_path, "prompt: a\nsampler: xyz")

    assert near.startswith(
        "5:14: sampler 'eulr' is not known; did you mean 'euler'? ours are euler,"
    )
    assert far.startswith("5:14: sampler 'xyz' is not known; ours are euler, euler a,")


def test_a_panel_overrides_the_defaults_and_null_leaves_them(tmp_path: Path) -> None:
    above = "defaults: {steps: 30, sampler: ddim, candidates: 3, guidance: 5, aspect: 3:2}"

    panel = load_panel(tmp_path, "prompt: a\nsteps: 8\nsampler: null\ncandidates:", above)

    assert (panel.steps, panel.sampler, panel.candidates, panel.guidance) == (8, "ddim", 3, 5.0)


def test_what_nobody_writes_has_comicgens_own_values(tmp_path: Path) -> None:
    story = load_story(tmp_path, "panels: [{id: p, prompt: a}]")
    panel = story.panels[0]

    assert (panel.steps, panel.guidance, panel.sampler, panel.candidates) == (20, 7.0, "euler", 2)
    assert (panel.size, panel.seed, panel.negative, panel.loras) == (Size(256, 256), None, None, ())
    assert (story.title, story.seed, story.precision, story.name) == (None, 0, None, "story")
    assert story.model.written == "pocket"


def test_size_and_aspect_override_each_other_across_levels_only(tmp_path: Path) -> None:
    by_size, by_aspect = "defaults: {size: 512x512}", "defaults: {aspect: 16:9}"
    both = panel_complaints(tmp_path, "prompt: a\naspect: 1:1\nsize: 256x256")

    assert load_panel(tmp_path, "prompt: a\naspect: 16:9", by_size).size == Size(320, 192)
    assert load_panel(tmp_path, "prompt: a\nsize: 384x256", by_aspect).size == Size(384, 256)
    assert both == ["6:5: aspect and size are both written; keep one of them"]


def test_a_size_the_model_was_not_trained_on_is_a_warning(tmp_path: Path) -> None:
    story = load_story(tmp_path, "panels: [{id: p, prompt: a, size: 512x512}]")

    assert story.panels[0].size == Size(512, 512)
    assert story.warnings == (
        "story.yaml:1:35: the model was not trained on size 512x512; "
        "pictures may repeat or crop things",
    )


def test_a_size_off_the_grid_names_both_neighbours_and_the_trained_size(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, "panels: [{id: p, prompt: a, size: 1000x563}]")

    assert complaint == (
        "1:35: size 1000x563 must be multiples of 8; use 1000x560 or 1000x568; trained: 320x192"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title: x", "1:1: panels must be a list of at least one panel"),
        ("panels:", "1:1: panels must be a list of at least one panel"),
        ("panels: []", "1:9: panels must be a list of at least one panel"),
        ("panels: {p1: red}", "1:9: panels must be a list of at least one panel"),
        (
            "panels: [{id: a, prompt: b}]\ndefaults: [x]",
            "2:11: defaults must be a mapping, not a l",
        ),
        ("panels: [{id: a, prompt: b}]\ncharacters: no", "2:13: characters must be a mapping"),
        ("panels: [{id: a, prompt: b}]\ncharacters: {m: a}", "2:17: character 'm' must be a mapp"),
        ("panels: [{id: a, prompt: b}]\ncharacters: {m b: {prompt: a}}", "2:14: the character's"),
        (
            "panels: [{id: a, prompt: b, loras: noir}]",
            "1:36: loras must be a list, not text 'noir'",
        ),
        (
            "panels: [{id: a, prompt: b, loras: [noir]}]",
            "1:37: loras item 1 must be a mapping, not",
        ),
        (
            "panels: [{id: a, prompt: b, control: []}]",
            "1:38: control must be a mapping, not a list",
        ),
        ("panels: [{id: a, prompt: b}]\nprecision: fp8", "2:12: precision 'fp8' is not known; ch"),
        (
            "panels: [{id: a, prompt: b, steps: [1]}]",
            "1:36: steps must be a whole number from 1 to 150, not a list",
        ),
        ("panels: [{id: a, prompt: b}]\n? [x]\n: 1", "2:3: a list or mapping cannot be a key"),
    ],
)
def test_a_wrong_shape_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (complaint,) = complaints(tmp_path, text)

    assert complaint.startswith(sentence)


def test_empty_parts_are_as_if_not_written(tmp_path: Path) -> None:
    text = "title:\nmodel:\nseed: ~\ndefaults:\ncharacters: null\npanels: [{id: p, prompt: a}]\n"

    assert load_story(tmp_path, text).panels[0].prompt == "a"
