"""The rules that the pocket model's figures rest on: what is held out, said, drawn and counted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionXLControlNetPipeline
from PIL import Image
from torch import Tensor

from comicgen import pocket

CPU = torch.device("cpu")
MAPS = Path(__file__).parent.parent / "storyboards" / "maps"


def test_judged_scenes_are_of_the_share_that_they_are_said_to_be(scripts: SimpleNamespace) -> None:
    unseen, size, first = scripts.unseen, (256, 256), scripts.scenes.HOLD_OUT_SEED
    scenes = [unseen.unseen_scene("unseen", size, first + n) for n in range(8)]
    apart = [unseen.unseen_scene("apart", size, first + n) for n in range(8)]
    people = [unseen.unseen_person("sophie", size, first + n) for n in range(8)]
    settings = {each.facts.setting for each in people}

    assert all(scripts.captions.unseen(each.facts) for each in scenes)
    for each in apart:
        (subject,) = each.facts.subjects
        assert scripts.captions.held_out(subject.noun, each.facts.setting)
    assert settings <= set(scripts.person_scenes.HELD_OUT_SETTINGS)


@pytest.mark.parametrize("first", [-1, 10**9 - 5 * 10**6, 10**9])
def test_no_worker_composes_with_the_seeds_of_judged_scenes(
    first: int, scripts: SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"kept for judging"):
        scripts.pool.start_workers(tmp_path / "pool", 1, 64, first)
    assert not (tmp_path / "pool").exists()


def test_answers_are_counted_as_the_facts_say(scripts: SimpleNamespace) -> None:
    words, reader, captions = scripts.vocabulary, scripts.reader, scripts.captions
    subjects, places = list(words.SUBJECTS), list(words.PLACES)
    fox = subjects.index("fox")
    left, right = places.index("left"), places.index("right")
    red = list(words.COLOURS).index("red")

    def facts(*cast: Any) -> Any:
        return captions.Facts("comic", "forest", "day", None, "medium", cast)

    def index(table: Any, word: str) -> Tensor:
        return torch.tensor([list(table).index(word)] * 2)

    nouns = torch.full((2, 3), subjects.index("dog"))
    nouns[0, left], nouns[1, left], nouns[1, right] = fox, fox, fox
    presence = torch.full((2, 3), -9.0)
    presence[:, left] = 0.0
    reading = reader.Reading(
        index(words.STYLES, "comic"), index(words.SETTINGS, "beach"), index(words.TIMES, "day"),
        nouns, presence, presence, torch.tensor([red, red]),
    )  # fmt: skip
    asked = [
        facts(captions.Subject("fox", "right", "blue")),
        facts(captions.Subject("fox", "left", "red"), captions.Subject("cat", "right", "blue")),
    ]

    shares = {name: (each.right, each.asked) for name, each in reader.score(reading, asked).items()}

    assert shares == {
        "style": (2, 2),
        "setting": (0, 2),
        "time": (2, 2),
        "subject alone": (1, 1),
        "subject of two": (1, 2),
        "subject": (2, 3),
        "shirt colour": (0, 1),
        "side": (0, 1),
    }


def test_a_floor_is_reached_at_its_limit_and_not_below(scripts: SimpleNamespace) -> None:
    floor = scripts.floors.Floor

    assert floor.no_fall("", {"a": 3.0, "b": -5.0}, 5).reached is True
    assert floor.no_fall("", {"a": 3.0, "b": -5.1}, 5).reached is False
    assert floor.no_fall("", {}, 5).reached is None
    assert floor.at_least("", 80.0, 80, " %").reached is True
    assert floor.at_least("", 79.9, 80, " %").reached is False


def test_figures_have_the_values_that_their_formulas_give(scripts: SimpleNamespace) -> None:
    measures = scripts.measures
    flat = torch.full((1, 3, 8, 8), 100, dtype=torch.uint8)
    red = torch.tensor([200, 100, 100], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)

    assert measures.psnr(measures.squared_error(flat + 1, flat)).item() == pytest.approx(
        48.13, abs=0.01
    )
    assert measures.saturation(red).item() == pytest.approx(0.5)
    assert measures.chroma(red).item() == 100
    assert measures.sharpness(flat).item() == pytest.approx(0, abs=1e-3)
    assert (measures.more(3.0, 2.0), measures.less(1.0, 4.0)) == (50, 75)


def test_steered_pictures_are_those_of_the_controlnet_pipeline(scripts: SimpleNamespace) -> None:
    drawing, prompt = scripts.drawing, "a fox in a forest at night"
    pipeline = drawing.load_pipeline(pocket.MODEL, CPU)
    controlnet = drawing.load_controlnet(pocket.controlnet("lineart"), CPU)
    castle = Image.open(MAPS / "castle.png").convert("L").resize((256, 192))
    maps = torch.from_numpy(np.asarray(castle) / np.float32(255))[None, None]
    steered = StableDiffusionXLControlNetPipeline.from_pipe(pipeline, controlnet=controlnet)
    steered.set_progress_bar_config(disable=True)

    def ours(weight: float) -> Tensor:
        steering = drawing.Steering(controlnet, maps, weight)
        drawn = drawing.draw(
            pipeline, [prompt], [""], (256, 192), [3], steps=4, guidance=3.0, steering=steering
        )
        return drawn[0].permute(1, 2, 0).float()

    theirs = steered(
        prompt,
        image=maps.expand(-1, 3, -1, -1),
        controlnet_conditioning_scale=0.8,
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(3),
        output_type="np",
    ).images[0]

    assert np.abs(ours(0.8).numpy() - 255 * theirs).max() < 2
    assert (ours(0.8) - ours(0.0)).abs().mean() > 8


def test_rows_differ_in_what_they_are_of_and_not_in_their_noise(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pipeline is stood in for; what it is asked for is kept."""
    worn: list[float] = []
    pipeline = SimpleNamespace(
        load_lora_weights=lambda *_, **__: None,
        set_adapters=lambda _, weight: worn.append(weight),
        unload_lora_weights=lambda: worn.append(0.0),
    )
    calls: list[tuple[Any, ...]] = []

    def draw(*asked: Any, **more: Any) -> Tensor:
        calls.append((*asked[1:], more["guidance"], worn[-1] if worn else 0.0))
        return torch.zeros(2, 3, 8, 8, dtype=torch.uint8)

    monkeypatch.setattr(scripts.sections, "draw", draw)
    scenes = scripts.unseen.Scenes(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), ["a", "b"], [])
    studio = scripts.sections.Studio(tmp_path, tmp_path, pipeline, None, None, {"any": scenes}, 2.5)
    first = scripts.scenes.HOLD_OUT_SEED

    assert studio.plain is studio.plain
    studio.draw(scenes, "blurry")
    drawn = scripts.sections._with_lora(studio, tmp_path / "noir.safetensors", scenes, (0.5, 1.0))

    assert list(drawn) == ["weight 0.5", "weight 1"]
    seeds = range(first, first + 2)
    assert calls == [
        (["a", "b"], ["", ""], (8, 8), seeds, 2.5, 0.0),
        (["a", "b"], ["blurry"] * 2, (8, 8), seeds, 2.5, 0.0),
        (["a", "b"], ["", ""], (8, 8), seeds, 2.5, 0.5),
        (["a", "b"], ["", ""], (8, 8), seeds, 2.5, 1.0),
    ]


def test_parts_of_any_number_are_put_together_in_order(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.parts, "MEBIBYTE", 10)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "file").write_bytes(bytes(range(200)))
    files = scripts.parts.split(tmp_path / "whole", tmp_path / "parts", 1)
    scripts.parts.join(tmp_path / "parts", tmp_path / "again")

    assert len(files) > 1000
    assert (tmp_path / "again" / "file").read_bytes() == bytes(range(200))
    files[-1].unlink()
    with pytest.raises(SystemExit, match="not all"):
        scripts.parts.join(tmp_path / "parts", tmp_path / "third")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_a_feed_tells_of_a_file_that_cannot_be_read(
    content: bytes, scripts: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "scene-0.npz").write_bytes(content)
    with (
        scripts.feed.Feed(tmp_path, "scene") as feed,
        pytest.raises(SystemExit, match="cannot be read"),
    ):
        next(iter(feed))
