"""The shipped LoRA and ControlNet visibly do what they are for, on the demo's own panels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from drawings import difference, image
from PIL import Image, ImageFilter

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.storyboard import Panel, load

DEMO = Path(__file__).parent.parent / "storyboards" / "demo.yaml"
Mask = npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def panels() -> dict[str, Panel]:
    return {panel.id: panel for panel in load(DEMO).panels}


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


@pytest.mark.parametrize("name", ["p03", "p04"])
def test_noir_takes_the_colour_out(
    name: str, engine: DiffusionEngine, panels: dict[str, Panel]
) -> None:
    with_noir, plain = panels[name], replace(panels[name], loras=())
    on, off = image(engine, with_noir), image(engine, plain)

    assert difference(on, off).mean >= 8
    assert colourfulness(on) < colourfulness(off) / 2


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
