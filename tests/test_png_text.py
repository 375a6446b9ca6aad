"""Every PNG tells how it was made, to other programs and to this one."""

import io
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from sketch_run import POCKET, candidates, panel, story

from comicgen.outputs.png_text import A1111_SAMPLERS, encoding, parameters
from comicgen.plan import Candidate
from comicgen.sizes import Size
from comicgen.sketch import sketch
from comicgen.storyboard import Control, Lora, Model
from comicgen.storyboard.samplers import SAMPLERS

AWKWARD = 'a lighthouse, "old": 9:16\nby the sea, 灯塔 "\\n" (night:1.2)'


def candidate_of(tmp_path: Path, **changes: object) -> Candidate:
    return candidates(story(tmp_path, panel("p01", **changes)))[1]


def parsed(text: str) -> tuple[str, str, dict[str, str]]:
    """Prompt, negative prompt and settings, read as the form's description says."""
    *lines, last = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith("Negative prompt: ")), None)
    prompt = "\n".join(lines[:start])
    negative = "" if start is None else "\n".join(lines[start:]).removeprefix("Negative prompt: ")
    return prompt, negative, dict(_settings(last))


def _settings(line: str) -> Iterator[tuple[str, str]]:
    while line:
        key, _, line = line.partition(": ")
        if line.startswith('"'):
            value, end = json.JSONDecoder().raw_decode(line)
            line = line[end:]
        else:
            value = line.partition(", ")[0]
            line = line[len(value) :]
        assert line[:2] in (", ", "")
        yield key, value
        line = line[2:]


def chunks(png: bytes) -> dict[bytes, bytes]:
    """Keyword of every text chunk -> its chunk type."""
    found, position = {}, 8
    while position < len(png):
        length, kind = struct.unpack_from(">I4s", png, position)
        if kind in (b"tEXt", b"iTXt", b"zTXt"):
            found[png[position + 8 : position + 8 + length].partition(b"\0")[0]] = kind
        position += length + 12
    return found


def test_an_awkward_prompt_comes_back_from_the_file_as_it_was(tmp_path: Path) -> None:
    candidate = candidate_of(tmp_path, prompt=AWKWARD, negative="blurry: no,\nnone")
    png = encoding(sketch(candidate), candidate, POCKET).whole()

    text = Image.open(io.BytesIO(png)).info["parameters"]

    prompt, negative, settings = parsed(text)
    assert (prompt, negative) == (AWKWARD, "blurry: no,\nnone")
    assert settings == {
        "Steps": "20",
        "Sampler": "Euler",
        "Schedule type": "Uniform",
        "CFG scale": "7",
        "Seed": str(candidate.seed),
        "Size": "48x32",
        "Model hash": POCKET.digest[:10],
        "Model": "pocket",
        "Version": "comicgen 0.1.0",
    }


def test_names_with_commas_colons_and_quotes_stay_one_value(tmp_path: Path) -> None:
    model = Model('/models/a "b", c.safetensors', Path("/m"), "ab" * 32)
    lineart = Model("line:art", Path("/c"), "cd" * 32)
    loras = (
        Lora("loras/mara, red.safetensors", Path("/l"), "12" * 32, 0.8),
        Lora("x/海.safetensors", Path("/k"), "34" * 32, 1.0),
    )
    control = Control(lineart, Path("/i.png"), "ef" * 32, 0.7, 0.0, 0.8)
    candidate = candidate_of(tmp_path, loras=loras, control=control, guidance=7.5)

    settings = parsed(parameters(candidate, model))[2]

    assert settings["Model"] == 'a "b" c'
    assert settings["Lora hashes"] == f"mara red: {'12' * 6}, 海: {'34' * 6}"
    assert settings["ControlNet 0"] == (
        "Model: lineart [cdcdcdcd], Weight: 0.7, Guidance Start: 0, Guidance End: 0.8"
    )
    assert settings["CFG scale"] == "7.5"


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_has_the_name_that_other_programs_know(tmp_path: Path, sampler: str) -> None:
    settings = parsed(parameters(candidate_of(tmp_path, sampler=sampler), POCKET))[2]

    combined = f"{settings['Sampler']} {settings.get('Schedule type', '')}".lower()
    assert combined.removesuffix(" uniform").strip() == sampler


def test_the_samplers_are_the_storyboards() -> None:
    assert set(SAMPLERS) == set(A1111_SAMPLERS)


@pytest.mark.parametrize("negative", [None, ""])
def test_nothing_is_written_for_what_is_absent(tmp_path: Path, negative: str | None) -> None:
    text = parameters(candidate_of(tmp_path, negative=negative), POCKET)

    assert "None" not in text
    assert "Negative" not in text
    assert "ControlNet" not in text
    assert "Lora" not in text


def test_our_own_text_says_what_was_asked_and_no_title_or_caption(tmp_path: Path) -> None:
    candidate = candidate_of(tmp_path, prompt=AWKWARD, title="A title", caption="A caption")
    png = encoding(sketch(candidate), candidate, POCKET).whole()

    told = json.loads(Image.open(io.BytesIO(png)).info["comicgen"])

    assert told == {
        "panel": "p01",
        "candidate": 2,
        "fingerprint": candidate.fingerprint,
        "fields": candidate.fields,
    }
    assert b"A title" not in png
    assert b"A caption" not in png


def test_text_beyond_latin_1_goes_into_an_international_chunk(tmp_path: Path) -> None:
    latin = candidate_of(tmp_path, prompt="un café")
    chinese = candidate_of(tmp_path, prompt="灯塔")

    assert chunks(encoding(sketch(latin), latin, POCKET).whole())[b"parameters"] == b"tEXt"
    assert chunks(encoding(sketch(chinese), chinese, POCKET).whole())[b"parameters"] == b"iTXt"


def test_the_bytes_follow_from_candidate_and_pixels_alone(tmp_path: Path) -> None:
    candidate = candidate_of(tmp_path, title="before", caption="before")
    later = replace(candidate, panel=replace(candidate.panel, title="after", caption=None))

    first = encoding(sketch(candidate), candidate, POCKET).whole()

    assert first == encoding(sketch(later), later, POCKET).whole()


def test_the_pixels_are_those_that_were_drawn(tmp_path: Path) -> None:
    candidate = candidate_of(tmp_path, size=Size(64, 48))
    drawn = sketch(candidate)

    saved = Image.open(io.BytesIO(encoding(drawn, candidate, POCKET).whole()))

    assert (saved.size, saved.mode) == ((64, 48), "RGB")
    assert saved.tobytes() == drawn.tobytes()
