"""The embedded model draws what its words ask for, as a classifier of composed scenes reads it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drawings import difference, image, shot
from PIL import Image

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.sizes import Size
from comicgen.storyboard import Panel

BASE = "a fox in a blue shirt standing on the left in a forest, comic book style"
SHOWN = {
    "subject": "fox",
    "shirt": "blue",
    "side": "left",
    "setting": "forest",
    "time": "day",
    "style": "comic",
}
"""What the reader should see of it."""
CHANGES = {
    "subject": ("fox", "panda", "panda"),
    "shirt": ("blue", "red", "red"),
    "side": ("left", "right", "right"),
    "setting": ("in a forest", "on a beach", "beach"),
    "time": ("in a forest", "in a forest at night", "night"),
    "style": ("comic book style", "pastel drawing", "pastel"),
}
"""Words, what is said instead, and what should then be seen."""
SEEDS = (1, 2)


def drawn(prompt: str, **changes: Any) -> Panel:
    return shot(prompt=prompt, size=Size(256, 256), steps=8, **changes)


@pytest.fixture(scope="module")
def reader(scripts: SimpleNamespace) -> Any:
    weights = scripts.evaluate.WEIGHTS_FOLDER / "reader.safetensors"
    return scripts.reader.load(scripts.reader.Reader, weights, torch.device("cpu"))


@pytest.fixture(scope="module")
def base(engine: DiffusionEngine) -> list[Image.Image]:
    return [image(engine, drawn(BASE), seed) for seed in SEEDS]


def read(scripts: SimpleNamespace, reader: Any, picture: Image.Image) -> Mapping[str, str]:
    """The attributes that the reader sees."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    seen, words = scripts.reader.read(reader, pixels), scripts.vocabulary
    colours = [*words.COLOURS, "none"]
    return {
        "subject": [*words.SUBJECTS, "nobody"][int(seen.subject)],
        "shirt": colours[int(seen.colour)],
        "side": words.PLACES[int(seen.side)],
        "setting": list(words.SETTINGS)[int(seen.setting)],
        "time": list(words.TIMES)[int(seen.time)],
        "style": list(words.STYLES)[int(seen.style)],
    }


def test_every_word_of_a_prompt_is_to_be_seen(
    scripts: SimpleNamespace, reader: Any, base: list[Image.Image]
) -> None:
    assert [read(scripts, reader, picture) for picture in base] == [SHOWN] * len(SEEDS)


@pytest.mark.parametrize("attribute", CHANGES)
def test_a_word_changes_what_it_names_and_nothing_else(
    attribute: str, scripts: SimpleNamespace, reader: Any, engine: DiffusionEngine
) -> None:
    words, others, seen = CHANGES[attribute]
    picture = image(engine, drawn(BASE.replace(words, others)), SEEDS[0])

    assert read(scripts, reader, picture) == {**SHOWN, attribute: seen}


def test_another_seed_draws_another_picture_of_the_same(base: list[Image.Image]) -> None:
    assert difference(*base).mean >= 8
