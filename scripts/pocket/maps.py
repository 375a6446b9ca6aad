"""Draw the control maps of the demo storyboard: scenes like those the model learns, as line art.

python scripts/pocket/maps.py storyboards/maps
"""

import argparse
import math
from pathlib import Path
from random import Random

import numpy as np
import torch
from backgrounds import background
from figures import MIDDLE, NECK, UNITS, figure
from lines import line_art
from pen import Pen, paste
from PIL import Image
from plainly import plainly

SKY, EARTH, STONE, ROOF, DOOR = "#9fd4f5", "#79b860", "#a9a4b8", "#c0453f", "#5a3a26"
SKIN = "#f5b04f"
MOUNTAINS_SEED = 7


def castle() -> Image.Image:
    """A castle to the right, and before it to the left somebody with a crown; 320x192.

    Nothing hangs in the sky, and the head is no more than its outline: the words are to say
    whether it is evening or night, and who stands there.
    """
    size = width, height = 320, 192
    ground, middle, s = height * 0.7, width * 0.745, height * 0.52
    pen = Pen("flat")
    pen.rect(0, 0, width, height, SKY)
    for n in range(5):
        pen.rect(middle + (0.18 * n - 0.42) * s, ground - s * 0.65, s * 0.1, s * 0.14, STONE)
    pen.rect(middle - s * 0.5, ground - s * 0.55, s, s * 0.6, STONE)
    for k in (-0.62, 0.4):
        left = middle + s * k
        pen.rect(left, ground - s * 0.85, s * 0.22, s * 0.9, "#7d788c")
        roof = [(-0.05, 0.84), (0.11, 1.14), (0.27, 0.84)]
        pen.polygon([(left + s * dx, ground - s * dy) for dx, dy in roof], ROOF)
    r = s * 0.12
    pen.path(
        f"M{middle - r:.0f} {ground + 3:.0f} v{-s * 0.22:.0f} a{r:.0f} {r:.0f} 0 0 1 {2 * r:.0f} 0 "
        f"v{s * 0.22:.0f} Z",
        DOOR,
    )
    hill = [(x, ground + height * 0.012 * math.sin(x / 36)) for x in range(-8, width + 17, 8)]
    pen.polygon([(-8, height + 8), *hill, (width + 16, height + 8)], EARTH)
    picture = pen.picture(size)
    somebody = with_plain_head(figure("boy", "red", "standing", "crown", 140, "flat"))
    paste(picture, somebody, width * 0.27 - somebody.width / 2, height * 0.9 - somebody.height)
    return picture


def with_plain_head(somebody: Image.Image) -> Image.Image:
    """A figure of the flat style with an oval over its head."""
    pen = Pen("flat", somebody.height / UNITS[1])
    pen.ellipse(MIDDLE, NECK / 2, 25, 25.5, SKIN)
    covered = somebody.copy()
    covered.alpha_composite(pen.picture(somebody.size, UNITS))
    return covered


def mountains() -> Image.Image:
    """Snowy mountains, and a fox with a crown sitting before them to the right; 256x256."""
    size = width, height = 256, 256
    picture, ground = background("mountains", "day", size, "flat", Random(MOUNTAINS_SEED))
    fox = figure("fox", "blue", "sitting", "crown", round(height * 0.7), "flat")
    fox = fox.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    paste(picture, fox, width * 0.72 - fox.width / 2, ground + height * 0.2 - fox.height)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the demo's control maps.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (castle, mountains):
        pixels = torch.from_numpy(np.array(draw().convert("RGB"))).permute(2, 0, 1)[None]
        lines = (line_art(pixels)[0, 0] * 255).byte().numpy()
        Image.fromarray(lines).convert("RGB").save(folder / f"{draw.__name__}.png", optimize=True)


if __name__ == "__main__":
    with plainly(ValueError):
        main()
