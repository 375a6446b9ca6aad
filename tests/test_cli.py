"""The commands as people and programs use them, drawn by the sketch engine."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from PIL import Image
from safetensors.numpy import load_file, save_file

from comicgen.cli import main, rendering
from comicgen.engine import Failed
from comicgen.pocket import MODEL
from comicgen.sketch import Sketch

STORY = """\
defaults: {candidates: 2, steps: 4, negative: blurry}
panels:
  - {id: p01, prompt: a fox in a forest, aspect: 16:9}
  - {id: p02, prompt: a king in a castle}
  - {id: p03, prompt: a witch in a cave, caption: Who is there?}
"""


OPEN_ENGINE = rendering.open_engine


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def drawn(self) -> list[str]:
        return [line["candidate"] for line in self.lines if line["event"] == "drawn"]


Comicgen = Callable[..., Ended]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "storyboards" / "tale.yaml"
    path.parent.mkdir()
    path.write_text(STORY, encoding="utf-8")
    return path


@pytest.fixture
def comicgen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], story: Path
) -> Comicgen:
    """Runs a command on the story: `comicgen("render", "--json")`."""
    monkeypatch.setattr(rendering, "open_engine", lambda model, environment, options: Sketch())

    def run(command: str, *options: str, file: Path = story) -> Ended:
        monkeypatch.setattr(sys, "argv", ["comicgen", command, str(file), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run


def edit(story: Path, old: str, new: str) -> None:
    text = story.read_text(encoding="utf-8")
    assert old in text
    story.write_text(text.replace(old, new), encoding="utf-8")


def write_wrong_weights(folder: Path) -> None:
    """Beside the storyboards: a model without its UNet, one whose UNet lacks a tensor."""
    half = shutil.copytree(MODEL, folder.parent / "half")
    shutil.rmtree(half / "unet")
    file = (
        shutil.copytree(MODEL, folder.parent / "torn") / "unet/diffusion_pytorch_model.safetensors"
    )
    save_file({n: t for n, t in load_file(file).items() if n != "conv_in.bias"}, file)
    stem = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_"
    sd15 = {f"{stem}A.weight": np.ones((2, 768), "f4"), f"{stem}B.weight": np.ones((320, 2), "f4")}
    save_file(sd15, folder / "sd15.safetensors")


def output(story: Path) -> Path:
    return story.parent.parent / "outputs" / "tale"


def test_render_draws_everything_once(comicgen: Comicgen, story: Path) -> None:
    first = comicgen("render", "--json")
    again = comicgen("render", "--json")

    assert (first.code, len(first.drawn)) == (0, 6)
    assert sorted(path.name for path in output(story).glob("p*/*.png")) == sorted(
        f"{name}.png" for name in first.drawn
    )
    assert (again.code, again.drawn, again.lines[-1]["kept"]) == (0, [], 6)


def test_nothing_to_do_is_said_to_people(comicgen: Comicgen) -> None:
    comicgen("render")

    assert "nothing to do: 6 candidates kept" in comicgen("render").err


def test_an_edited_prompt_redraws_its_candidates_and_keeps_the_old_files(
    comicgen: Comicgen, story: Path
) -> None:
    comicgen("render")
    before = (output(story) / "p02/p02-c01.png").read_bytes()
    edit(story, "a king in a castle", "a queen in a castle")

    assert comicgen("render", "--json").drawn == ["p02-c01", "p02-c02"]
    kept = [path.read_bytes() for path in (output(story) / "history").iterdir()]
    assert len(kept) == 2
    assert before in kept


def test_a_caption_redraws_nothing(comicgen: Comicgen, story: Path) -> None:
    comicgen("render")
    edit(story, "Who is there?", "Who goes there?")

    assert comicgen("render", "--json").drawn == []


def test_selected_panels_leave_changed_ones_alone_and_list_them(
    comicgen: Comicgen, story: Path
) -> None:
    comicgen("render")
    edit(story, "steps: 4", "steps: 5")

    ended = comicgen("render", "--panel", "p01", "--panel", "p03", "--json")
    assert sorted(ended.drawn) == ["p01-c01", "p01-c02", "p03-c01", "p03-c02"]
    assert ended.lines[-1]["waiting"] == ["p02-c01", "p02-c02"]
    assert "p02  c01 c02  changed (steps 4 -> 5)" in comicgen("render", "--panel", "p01").err


def test_candidate_is_a_number_not_a_count(comicgen: Comicgen) -> None:
    assert comicgen("render", "--panel", "p02", "--candidate", "2", "--json").drawn == ["p02-c02"]
    wrong = comicgen("render", "--panel", "p02", "--candidate", "3")
    assert wrong.code == 2
    assert "2 candidates" in wrong.err


def test_more_is_remembered(comicgen: Comicgen, story: Path) -> None:
    comicgen("render")

    assert comicgen("render", "-p", "p02", "--more", "2", "--json").drawn == ["p02-c03", "p02-c04"]
    (output(story) / "p02/p02-c04.png").unlink()
    assert comicgen("render", "--json").drawn == ["p02-c04"]


def test_redo_gives_the_same_picture_and_reseed_another(comicgen: Comicgen, story: Path) -> None:
    comicgen("render")
    file = output(story) / "p03/p03-c01.png"
    first = file.read_bytes()

    assert comicgen("render", "-p", "p03", "--candidate", "1", "--redo", "--json").drawn == [
        "p03-c01"
    ]
    assert file.read_bytes() == first
    assert comicgen("render", "-p", "p03", "--candidate", "1", "--reseed", "--json").drawn == [
        "p03-c01"
    ]
    assert file.read_bytes() != first
    assert first in [path.read_bytes() for path in (output(story) / "history").iterdir()]
    assert comicgen("render", "--json").drawn == []


def test_failed_draws_only_what_failed(
    comicgen: Comicgen, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sick(Sketch):
        def draw(self, batch: Any, upcoming: Any) -> Any:
            for event in super().draw(batch, upcoming):
                bad = event.candidate.name == "p02-c02"
                yield Failed(event.candidate, "nan") if bad else event

    with monkeypatch.context() as patch:
        patch.setattr(rendering, "open_engine", lambda model, environment, options: Sick())
        ended = comicgen("render", "--json")
    edit(story, "a fox in a forest", "a fox in a park")

    assert (ended.code, len(ended.drawn), ended.lines[-1]["failed"]) == (3, 5, 1)
    assert "failed (nan)" in comicgen("status").err
    assert comicgen("render", "--failed", "--json").drawn == ["p02-c02"]
    said = comicgen("render", "--failed").err
    assert "nothing to do" in said
    assert said.endswith("none that was chosen has failed\n")


def test_an_unknown_panel_names_the_nearest(comicgen: Comicgen, story: Path) -> None:
    ended = comicgen("render", "--panel", "p1")

    assert ended.code == 2
    assert "did you mean 'p01'?" in ended.err
    assert not output(story).exists()


@pytest.mark.parametrize(
    "options",
    [("--redo", "--reseed"), ("--redo", "--more", "1"), ("--more", "0")],
)
def test_options_that_make_no_sense_write_nothing(
    comicgen: Comicgen, story: Path, options: tuple[str, ...]
) -> None:
    assert comicgen("render", *options).code == 2
    assert not output(story).exists()


WRONG = {
    "an unknown key": ("aspect: 16:9", "aspekt: 16:9", "did you mean 'aspect'"),
    "a wrong type": ("steps: 4", "steps: [4]", "steps"),
    "a missing file": ("aspect: 16:9", "loras: [{file: gone.safetensors}]", "gone.safetensors"),
    "a model without a part": ("defaults:", "model: ../half\ndefaults:", "unet"),
    "a model without a tensor": ("defaults:", "model: ../torn\ndefaults:", "conv_in.bias"),
    "a LoRA for another base": ("aspect: 16:9", "loras: [{file: sd15.safetensors}]", "768 wide"),
}


@pytest.mark.parametrize(("old", "new", "said"), WRONG.values(), ids=WRONG)
def test_bad_input_is_a_sentence_and_nothing_is_written(
    comicgen: Comicgen, monkeypatch: pytest.MonkeyPatch, story: Path, old: str, new: str, said: str
) -> None:
    monkeypatch.setattr(rendering, "open_engine", OPEN_ENGINE)
    write_wrong_weights(story.parent)
    edit(story, old, new)
    before = sorted(story.parent.parent.rglob("*"))

    ended = comicgen("render", "--device", "cpu")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert sorted(story.parent.parent.rglob("*")) == before


def test_a_journal_damaged_in_the_middle_is_left_alone(comicgen: Comicgen, story: Path) -> None:
    comicgen("render")
    journal = output(story) / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"?" + lines[2], *lines[3:]]))
    before = journal.read_bytes()

    ended = comicgen("render")
    assert ended.code == 2
    assert f"{journal}:3: the line is damaged" in ended.err
    assert journal.read_bytes() == before


def test_output_is_another_folder(comicgen: Comicgen, story: Path, tmp_path: Path) -> None:
    comicgen("render", "--output", str(tmp_path / "elsewhere"))

    assert len(list((tmp_path / "elsewhere").glob("p*/*.png"))) == 6
    assert not output(story).exists()


def test_plan_shows_batches_and_the_reason_of_every_candidate(
    comicgen: Comicgen, story: Path
) -> None:
    comicgen("render", "-p", "p01")
    edit(story, "a king in a castle", "a queen in a castle")

    shown = comicgen("plan", "--batch", "1", "--device", "cpu")
    assert "p02  c01 c02  new" in shown.err
    assert "p01  c01 c02  done" in shown.err
    assert "4 pictures to draw, 4 batches, 0 padded lanes, 2 kept" in shown.err
    planned = comicgen("plan", "--batch", "1", "--json").lines[0]
    lanes = [batch["lanes"] for batch in planned["batches"]]
    assert lanes == [["p02-c01"], ["p02-c02"], ["p03-c01"], ["p03-c02"]]
    assert {each["state"] for each in planned["candidates"]} == {"draw", "kept"}


def test_status_counts(comicgen: Comicgen) -> None:
    comicgen("render", "-p", "p01")

    assert "2 of 6 candidates done" in comicgen("status").err
    assert comicgen("status", "--json").lines[0]["counts"] == {"done": 2, "new": 4}


def test_check_says_every_mistake_with_its_place(comicgen: Comicgen, story: Path) -> None:
    edit(story, "aspect: 16:9", "aspekt: 16:9")
    edit(story, "steps: 4", "steps: many")

    ended = comicgen("check", "--json")
    assert ended.code == 2
    errors = ended.lines[0]["errors"]
    places = [(each["file"], each["line"], each["column"]) for each in errors]
    assert places == [(str(story), 1, 34), (str(story), 3, 42)]
    assert errors[1]["cure"] == "did you mean 'aspect'?"


def test_a_good_storyboard_passes_the_check(comicgen: Comicgen) -> None:
    assert comicgen("check", "--json").lines == [
        {"ok": True, "panels": 3, "pictures": 6, "warnings": []}
    ]


def test_unknown_words_are_a_warning_of_check_plan_and_render(
    comicgen: Comicgen, story: Path
) -> None:
    edit(story, "a fox in a forest", "a fox in a zzforest")
    told = "tale.yaml:3:5: the embedded model does not know 'zzforest' (p01)"

    ended = [comicgen(command) for command in ("check", "plan", "render")]
    assert [(each.code, each.err.count(f"warning: {told}")) for each in ended] == [(0, 1)] * 3
    (warning,) = comicgen("check", "--json").lines[0]["warnings"]
    (run,) = json.loads((output(story) / "manifest.json").read_bytes())["runs"]
    assert warning.startswith(told)
    assert run["notes"][0] == warning


def test_inspect_tells_a_picture_from_a_model(comicgen: Comicgen, story: Path) -> None:
    comicgen("render", "-p", "p01")
    picture = output(story) / "p01/p01-c01.png"

    assert comicgen("inspect", "--json", file=picture).lines[0]["kind"] == "picture"
    with Image.open(picture) as image:
        assert "a fox in a forest" in image.info["parameters"]


@pytest.mark.parametrize(
    ("name", "kind"), [("noir", "lora"), ("lineart", "controlnet"), ("pocket", "model")]
)
def test_inspect_knows_what_is_shipped_by_name(comicgen: Comicgen, name: str, kind: str) -> None:
    assert comicgen("inspect", "--json", file=Path(name)).lines[0]["kind"] == kind


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("what", ["storyboard", "manifest"])
def test_schema_is_a_valid_json_schema(
    comicgen: Comicgen, what: str, options: tuple[str, ...]
) -> None:
    ended = comicgen("schema", *options, file=Path(what))

    Draft202012Validator.check_schema(json.loads(ended.out))
    assert (len(ended.out.splitlines()) == 1) == bool(options)


def test_a_stranger_s_text_does_not_steer_the_terminal(comicgen: Comicgen, story: Path) -> None:
    edit(story, "aspect: 16:9", '"\\e[31maspect": 16:9')

    ended = comicgen("check")
    assert ended.code == 2
    assert "\x1b" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "STORY"],
        ["check", "STORY"],
        ["status", "STORY"],
        ["inspect", "MODEL"],
        ["schema"],
        ["render", "STORY", "--panel", "nobody"],
    ],
)
def test_torch_is_not_imported_before_drawing(arguments: list[str], story: Path) -> None:
    places = {"STORY": str(story), "MODEL": str(MODEL)}
    argv = ["comicgen", *(places.get(each, each) for each in arguments)]
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('HEAVY', *{'torch', 'diffusers', 'transformers'}"
        ".intersection(sys.modules)))\n"
        f"sys.argv = {argv!r}\n"
        "from comicgen.cli import main\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ended.stdout.splitlines()[-1] == "HEAVY"
