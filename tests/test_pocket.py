"""The shipped LoRAs, the ControlNet and the negative prompt visibly do what they are for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import (
    ControlNetModel,
    StableDiffusionXLControlNetPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
)
from drawings import difference, image, shot
from PIL import Image, ImageFilter

from comicgen import pocket as shipped
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.sizes import Size
from comicgen.storyboard import Panel, load

DEMO = Path(__file__).parent.parent / "storyboards" / "demo.yaml"
Mask = npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def panels() -> dict[str, Panel]:
    """Those of the demo, with as many steps as show what they are drawn with."""
    return {panel.id: replace(panel, steps=8) for panel in load(DEMO).panels}


def colourfulness(picture: Image.Image) -> float:
    """Strongest channel less the weakest, on average, of 255."""
    return float(np.ptp(np.asarray(picture).astype(int), axis=2).mean())


def wide(mask: Mask) -> Mask:
    """Grown by two pixels all round."""
    grown = Image.fromarray(mask).convert("L").filter(ImageFilter.MaxFilter(5))
    return np.asarray(grown) > 0


def edges(picture: Image.Image) -> Mask:
    """Where the picture changes steeply."""
    smooth = np.asarray(picture.filter(ImageFilter.GaussianBlur(1))).astype(float)
    down, across = np.gradient(smooth, axis=(0, 1))
    return np.asarray(np.hypot(down, across).max(axis=2) > 12)


def found(control: Path, picture: Image.Image) -> float:
    """Which share of the control image's lines has an edge of the picture within two pixels."""
    with Image.open(control) as opened:
        lines = np.asarray(opened.convert("L")) > 127
    return float((wide(edges(picture)) & lines).sum() / lines.sum())


def pixels(pictures: Iterable[Image.Image]) -> torch.Tensor:
    """(n, 3, h, w), uint8."""
    return torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in pictures])


@pytest.mark.parametrize("name", ["p03", "p04"])
def test_noir_takes_the_colour_out_the_more_the_heavier_it_is(
    name: str, engine: DiffusionEngine, panels: dict[str, Panel]
) -> None:
    worn = panels[name]
    (lora,) = worn.loras
    half, whole = (replace(worn, loras=(replace(lora, weight=w),)) for w in (0.5, 1.0))
    plain, half_noir, noir = (
        image(engine, each) for each in (replace(worn, loras=()), half, whole)
    )

    assert difference(noir, plain).mean >= 8
    assert colourfulness(noir) < colourfulness(plain) / 3
    assert colourfulness(noir) < colourfulness(half_noir) < colourfulness(plain)


def test_sophie_is_drawn_only_where_her_lora_is_worn(
    engine: DiffusionEngine, panels: dict[str, Panel], scripts: SimpleNamespace
) -> None:
    file = scripts.evaluate.WEIGHTS_FOLDER / "who.safetensors"
    who = scripts.reader.load(scripts.reader.Who, file, torch.device("cpu"))
    worn = panels["p05"]
    on = [image(engine, worn, seed) for seed in (1, 2)]
    off = [image(engine, replace(worn, loras=()), seed) for seed in (1, 2)]

    sophie = scripts.people.NAMES.index("sophie")
    assert scripts.reader.recognised(who, pixels(on)).tolist() == [sophie] * 2
    assert sophie not in scripts.reader.recognised(who, pixels(off)).tolist()


@pytest.mark.parametrize("name", ["p01", "p06", "p08"])
def test_lineart_puts_its_lines_into_the_picture(
    name: str, engine: DiffusionEngine, panels: dict[str, Panel]
) -> None:
    steered = panels[name]
    control = steered.control
    assert control
    on, off = image(engine, steered), image(engine, replace(steered, control=None))

    assert difference(on, off).mean >= 8
    assert found(control.image, on) > 0.6
    assert found(control.image, on) > found(control.image, off) + 0.2


def test_blurry_as_a_negative_prompt_sharpens(
    engine: DiffusionEngine, scripts: SimpleNamespace
) -> None:
    prompts = ("a fox in a blue shirt running in a forest", "a red car on a city street at night")
    plain, sharpened = (
        [
            image(engine, shot(prompt=prompt, size=Size(256, 256), steps=8, negative=negative))
            for prompt in prompts
        ]
        for negative in ("", scripts.vocabulary.DEGRADED)
    )
    sharpness = scripts.measures.sharpness

    assert sharpness(pixels(sharpened)).mean() > 1.1 * sharpness(pixels(plain)).mean()


def test_diffusers_own_pipelines_load_all_of_it(panels: dict[str, Panel]) -> None:
    plain = StableDiffusionXLPipeline.from_pretrained(shipped.MODEL, add_watermarker=False)
    plain.set_progress_bar_config(disable=True)
    lineart = ControlNetModel.from_pretrained(shipped.controlnet("lineart"))
    steered = StableDiffusionXLControlNetPipeline.from_pipe(plain, controlnet=lineart)
    again = StableDiffusionXLImg2ImgPipeline.from_pipe(plain)
    for pipe in (steered, again):
        pipe.set_progress_bar_config(disable=True)

    def drawn(pipe: Any, **more: Any) -> Image.Image:
        options: dict[str, Any] = {"num_inference_steps": 8, "guidance_scale": 4.0, **more}
        seed = torch.Generator().manual_seed(3)
        return pipe("a lion in front of a castle at sunset", generator=seed, **options).images[0]

    control = panels["p01"].control
    assert control
    with Image.open(control.image) as opened:
        size, lines = {"width": opened.width, "height": opened.height}, opened.convert("RGB")
    first = drawn(plain, **size)
    along = drawn(steered, image=lines, controlnet_conditioning_scale=0.9, **size)
    changed = drawn(again, image=first, strength=0.5, num_inference_steps=16)
    file = shipped.lora("noir")
    plain.load_lora_weights(file.parent, weight_name=file.name)
    grey = drawn(plain, **size)

    assert found(control.image, along) > found(control.image, first) + 0.2
    assert 2 < difference(changed, first).mean < difference(along, first).mean
    assert colourfulness(grey) < colourfulness(first) / 3
