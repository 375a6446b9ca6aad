"""The files that a storyboard names are looked at before anything is drawn."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from lora_files import Recipe, write_peft
from PIL import Image
from stories import (
    complaints,
    load_panel,
    load_story,
    panel_complaints,
    write_controlnet,
    write_map,
    write_story,
)

from comicgen import pocket
from comicgen.digests import digest_file, digest_files
from comicgen.errors import InputError
from comicgen.storyboard import Lora, files, load
from comicgen.weights import read_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two LoRAs, a ControlNet and a control image."""
    model = read_model(pocket.MODEL)
    write_peft(tmp_path / "loras" / "mara.safetensors", model)
    write_peft(tmp_path / "loras" / "ink.safetensors", model, Recipe(seed=1))
    write_controlnet(tmp_path / "lines")
    write_map(tmp_path / "maps" / "p01.png", 256, 256)
    return tmp_path


def test_loras_are_found_and_digested(folder: Path) -> None:
    panel = load_panel(folder, "prompt: a\nloras: [{file: loras/mara.safetensors, weight: 0.8}]")

    file = folder / "loras" / "mara.safetensors"
    assert panel.loras == (Lora("loras/mara.safetensors", file, digest_file(file), 0.8),)


def test_a_control_is_found_and_digested(folder: Path) -> None:
    lines = "prompt: a\ncontrol: {model: ./lines, image: maps/p01.png, weight: .5, end: 0.8}"
    control = load_panel(folder, lines).control

    assert control is not None
    assert (control.weight, control.start, control.end) == (0.5, 0.0, 0.8)
    files = [folder / "lines/config.json", folder / "lines/diffusion_pytorch_model.safetensors"]
    assert control.model.digest == digest_files(folder / "lines", files)
    assert control.image_digest == digest_file(folder / "maps" / "p01.png")


def test_a_panels_loras_replace_the_defaults_and_characters_come_on_top(folder: Path) -> None:
    above = (
        "defaults: {loras: [{file: loras/ink.safetensors}]}\n"
        "characters: {m: {prompt: b, loras: [{file: loras/mara.safetensors, weight: 0.5}]}}"
    )

    inherited = load_panel(folder, "prompt: '{m} {m}'", above)
    own = load_panel(folder, "prompt: '{m}'\nloras: []", above)
    off = load_panel(folder, "prompt: a\nloras: null", above)

    assert [lora.file.stem for lora in inherited.loras] == ["ink", "mara"]
    assert [lora.file.stem for lora in own.loras] == ["mara"]
    assert off.loras == ()


def test_one_file_counts_once_and_only_at_one_weight(folder: Path) -> None:
    above = "characters: {m: {prompt: b, loras: [{file: loras/mara.safetensors, weight: 0.5}]}}"
    loras = "prompt: '{{m}}'\nloras: [{{file: ./loras/mara.safetensors, weight: {}}}]"

    (complaint,) = panel_complaints(folder, loras.format(0.7), above)

    assert len(load_panel(folder, loras.format(0.5), above).loras) == 1
    assert complaint == (
        "1:44: LoRA 'loras/mara.safetensors' has weight 0.5 here, but "
        "'./loras/mara.safetensors', the same file, has 0.7 on line 5, "
        "and one panel asks for both; write the same weight"
    )


def test_control_null_switches_the_defaults_off(folder: Path) -> None:
    above = "defaults: {control: {model: ./lines, image: maps/p01.png}}"

    assert load_panel(folder, "prompt: a", above).control is not None
    assert load_panel(folder, "prompt: a\ncontrol: null", above).control is None


def test_three_panels_with_two_maps_name_the_third(folder: Path) -> None:
    write_map(folder / "maps" / "p02.png", 256, 256)
    panels = "".join(
        f"- {{id: p0{n}, prompt: a, control: {{model: ./lines, image: maps/p0{n}.png}}}}\n"
        for n in (1, 2, 3)
    )

    (complaint,) = complaints(folder, f"panels:\n{panels}")

    assert complaint.startswith("4:57: panel 'p03': control image 'maps/p03.png' is not there;")


@pytest.mark.parametrize(
    ("width", "height", "fine"),
    [(512, 512, True), (260, 256, True), (264, 256, False), (256, 512, False)],
)
def test_a_control_image_of_another_aspect_is_refused(
    folder: Path, width: int, height: int, fine: bool
) -> None:
    write_map(folder / "m.png", width, height)

    found = panel_complaints(folder, "prompt: a\ncontrol: {model: ./lines, image: m.png}")

    expected = (
        f"5:38: panel 'p01': control image 'm.png' is {width}x{height}, but the panel is drawn in "
        "256x256; crop or pad it to that size or its aspect"
    )
    assert found == ([] if fine else [expected])


def test_a_blank_control_image_is_refused(folder: Path) -> None:
    Image.new("RGB", (256, 256), (9, 9, 9)).save(folder / "m.png")

    (complaint,) = panel_complaints(folder, "prompt: a\ncontrol: {model: ./lines, image: m.png}")

    assert "control image 'm.png' is blank: all of it has one colour; give one that" in complaint


def test_a_transparent_control_image_is_refused_and_an_opaque_one_with_alpha_is_not(
    folder: Path,
) -> None:
    image = Image.open(write_map(folder / "m.png", 256, 256)).convert("RGBA")
    lines = "prompt: a\ncontrol: {model: ./lines, image: m.png}"
    image.save(folder / "m.png")
    assert panel_complaints(folder, lines) == []
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.save(folder / "m.png")

    (complaint,) = panel_complaints(folder, lines)
    assert "'m.png' is partly transparent; flatten it onto black or white" in complaint


def test_a_control_image_is_seen_as_its_exif_turns_it(folder: Path) -> None:
    image = Image.open(write_map(folder / "m.png", 320, 192))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(folder / "m.png", exif=exif)

    found = panel_complaints(
        folder, "prompt: a\ncontrol: {model: ./lines, image: m.png}\naspect: 9:16"
    )
    assert found == []


def test_a_sixteen_bit_control_image_is_not_blank(folder: Path) -> None:
    grey = np.asarray(Image.linear_gradient("L")).astype(np.uint16) * 100 + 300
    Image.fromarray(grey).save(folder / "m.png")

    assert panel_complaints(folder, "prompt: a\ncontrol: {model: ./lines, image: m.png}") == []


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_control_image_that_cannot_be_decoded_is_a_warning(folder: Path, damage: str) -> None:
    whole = write_map(folder / "m.png", 256, 256).read_bytes()
    content = {"cut": whole[: len(whole) // 2], "text": b"no picture", "empty": b""}[damage]
    (folder / "m.png").write_bytes(content)

    story = load_story(
        folder, "panels: [{id: p, prompt: a, control: {model: ./lines, image: m.png}}]"
    )

    (warning,) = story.warnings
    assert story.panels[0].control is not None
    assert warning.startswith("story.yaml:1:62: control image 'm.png' cannot be decoded (")
    assert warning.endswith("save it again, or its panel will fail")
    assert str(folder) not in warning


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "stabilityai/sdxl",
            "model 'stabilityai/sdxl' is no folder here, and is not fetched from a",
        ),
        ("./nowhere", "model './nowhere' is no folder; give pocket, or the path of a model's diff"),
        ("sdxl.safetensors", "model 'sdxl.safetensors' is a single file; give pocket, or the path"),
        ("a/b.ckpt", "model 'a/b.ckpt' is a single file; give pocket, or the path of a model's"),
        ("maps", "'model_index.json' is missing"),
        ("x" * 300, "is no folder; give pocket"),
    ],
)
def test_a_model_that_is_no_diffusers_folder_is_refused(
    folder: Path, model: str, sentence: str
) -> None:
    (complaint,) = complaints(folder, f"model: {model}\npanels: [{{id: p, prompt: a}}]")

    assert complaint.startswith("1:8: ")
    assert sentence.replace("'model_index.json'", "model_index.json:") in complaint


def test_a_model_that_the_system_does_not_let_us_read_is_a_complaint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", f"{path.name}/tokenizer")

    monkeypatch.setattr(files, "load_tokenizers", refuse)

    assert panel_complaints(folder, "prompt: a fox", "model: pocket") == [
        "1:8: 'model/tokenizer' cannot be read: Permission denied; mend its permissions"
    ]


def test_a_models_folder_may_lie_beside_the_storyboard(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "mine").symlink_to(pocket.MODEL)

    model = load_story(folder, "model: models/mine\npanels: [{id: p, prompt: a}]").model

    assert (model.written, model.folder) == ("models/mine", folder / "models/mine")
    assert model.digest == digest_files(pocket.MODEL, read_model(pocket.MODEL).files)


def test_a_file_that_is_no_part_of_a_model_does_not_change_its_pictures(folder: Path) -> None:
    (folder / "models").mkdir()
    copy = shutil.copytree(pocket.MODEL, folder / "models/mine")
    text = "model: models/mine\npanels: [{id: p, prompt: a}]"
    before = load_story(folder, text).model.digest
    (copy / "unet/another.safetensors").write_bytes(b"x")
    (copy / "notes.json").write_text("{}", encoding="utf-8")

    assert load_story(folder, text).model.digest == before
    (copy / "tokenizer/special_tokens_map.json").write_text("{}", encoding="utf-8")
    assert load_story(folder, text).model.digest != before


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        ("loras", "no LoRA called 'loras' is shipped"),
        ("./loras", "LoRA './loras' is a folder; give a file"),
        ("loras/x.safetensors", "LoRA 'loras/x.safetensors' is not there; looked for at '"),
        ("maps/p01.png", "LoRA 'maps/p01.png' is no .safetensors file; only those are read"),
        ("broken.safetensors", "broken.safetensors"),
        ("~nobody-at-all/x.safetensors", "names a home folder that is not known"),
    ],
)
def test_a_lora_that_cannot_be_used_is_refused(folder: Path, lora: str, sentence: str) -> None:
    (folder / "broken.safetensors").write_bytes(b"\x80\x02pickle")

    (complaint,) = panel_complaints(folder, f"prompt: a\nloras: [{{file: {lora}}}]")

    assert complaint.startswith("5:20: ")
    assert sentence in complaint


def test_loras_of_characters_are_looked_at_though_nobody_mentions_them(folder: Path) -> None:
    above = "characters: {m: {prompt: b, loras: [{file: x.safetensors}]}}"

    (complaint,) = panel_complaints(folder, "prompt: a", above)

    assert complaint.startswith("1:44: LoRA 'x.safetensors' is not there")


def test_a_controlnet_that_is_none_is_refused_where_it_is_named(folder: Path) -> None:
    named = [
        panel_complaints(folder, f"prompt: a\ncontrol: {{image: maps/p01.png, model: {model}}}")[0]
        for model in ("./maps", "./nowhere", "nothing")
    ]

    assert all(line.startswith("5:43: panel 'p01': ") for line in named)
    assert "config.json: is missing" in named[0]
    assert "ControlNet './nowhere' is no folder; give its diffusers folder" in named[1]
    assert "no ControlNet called 'nothing' is shipped" in named[2]


def test_a_bare_name_that_is_unknown_lists_what_is_shipped() -> None:
    shipped = sorted(path.stem for path in pocket.MODEL.parent.glob("loras/*.safetensors"))

    assert [pocket.lora(name).stem for name in shipped] == shipped
    with pytest.raises(InputError, match=", ".join(shipped) or "none"):
        pocket.lora("nothing")


def test_paths_start_at_the_storyboard_wherever_one_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "control: {model: ./lines, image: maps/p01.png}, size: 512x512"
    path = write_story(folder, f"panels: [{{id: p, prompt: a, {lines}}}]")
    here = load(path)
    monkeypatch.chdir("/")

    from_root = load(Path(os.path.relpath(path, "/")))
    monkeypatch.chdir(folder / "maps")
    from_maps = load(Path("../story.yaml"))

    assert here == from_root
    assert here.panels == from_maps.panels
    assert here.warnings == from_maps.warnings != ()
    assert from_root.path.is_absolute()


def test_a_window_in_which_no_step_lies_is_refused(folder: Path) -> None:
    window = "control: {model: ./lines, image: maps/p01.png, start: 0.5, end: 0.52}"
    (complaint,) = panel_complaints(folder, f"prompt: a\nsteps: 20\n{window}")

    assert "no step of 20 lies between start 0.5 and end 0.52; widen the window" in complaint
    assert panel_complaints(folder, f"prompt: a\nsteps: 100\n{window}") == []


def test_a_lora_twice_in_one_list_is_refused_and_twice_from_two_is_one(folder: Path) -> None:
    mara = "{file: loras/mara.safetensors, weight: 0.8}"
    above = f"characters: {{mara: {{prompt: a farmer, loras: [{mara}]}}}}"

    (complaint,) = panel_complaints(folder, f"prompt: a\nloras: [{mara}, {mara}]")
    assert "LoRA 'loras/mara.safetensors' is in this list twice; write it once" in complaint
    panel = load_panel(folder, f"prompt: '{{mara}}'\nloras: [{mara}]", above)
    assert len(panel.loras) == 1
