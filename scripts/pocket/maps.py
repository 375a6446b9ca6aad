"""Draw the control maps of the demo storyboard: simple shapes, turned into line art.

python scripts/pocket/maps.py storyboards/maps
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from lines import line_art
from PIL import Image, ImageDraw
from PIL.ImageDraw import ImageDraw as Pen

SKY, EARTH, WALL, ROOF = "#9fc8f0", "#5fae55", "#d8d0c0", "#b03a30"
SHIRT, SKIN, TROUSERS, SHADE = "#2f6fd6", "#ffc83d", "#2c3350", "#6d7f99"


def hill(pen: Pen, width: int, height: int, horizon: float, crest: float, rise: float) -> None:
    """Ground up to `horizon`, with one rise centred on `crest`; all shares of the picture."""
    xs = np.linspace(-0.02, 1.02, 80)
    ys = horizon - rise * np.exp(-(((xs - crest) / 0.22) ** 2))
    outline = [(x * width, y * height) for x, y in zip(xs, ys, strict=True)]
    pen.polygon([*outline, (width, height + 9), (-9, height + 9)], fill=EARTH)


def figure(pen: Pen, x: float, foot: float, tall: float) -> None:
    """A person with a round head, arms a little out, standing at (x, foot); in pixels."""
    u = tall / 100
    for side in (-1, 1):
        pen.line(
            [(x + side * 10 * u, foot - 50 * u), (x + side * 21 * u, foot - 30 * u)],
            fill=SHIRT,
            width=round(9 * u),
        )
        pen.rectangle(
            [x + (side * 7 - 5) * u, foot - 28 * u, x + (side * 7 + 5) * u, foot], fill=TROUSERS
        )
    pen.rounded_rectangle([x - 13 * u, foot - 57 * u, x + 13 * u, foot - 26 * u], 5 * u, fill=SHIRT)
    pen.ellipse([x - 22 * u, foot - 100 * u, x + 22 * u, foot - 54 * u], fill=SKIN)


def tower(pen: Pen, left: float, top: float, wide: float, base: float) -> None:
    pen.rectangle([left, top, left + wide, base], fill=WALL)
    pen.polygon([(left - 4, top), (left + wide / 2, top - 28), (left + wide + 4, top)], fill=ROOF)


def castle() -> Image.Image:
    """A castle on a hill to the right, a person before it to the left, the moon above; 320x192."""
    picture = Image.new("RGB", (320, 192), SKY)
    pen = ImageDraw.Draw(picture)
    pen.ellipse([30, 14, 60, 44], fill="#fdf3c0")
    hill(pen, 320, 192, horizon=0.76, crest=0.68, rise=0.16)
    pen.rectangle([180, 66, 256, 122], fill="#c4bcae")
    tower(pen, 166, 48, 24, 124)
    tower(pen, 246, 48, 24, 124)
    pen.rounded_rectangle([208, 94, 228, 128], 10, fill="#5a3a26")
    figure(pen, 84, 182, 92)
    return picture


def mountains() -> Image.Image:
    """Two snowy mountains and a person before them to the right; 256x256."""
    picture = Image.new("RGB", (256, 256), SKY)
    pen = ImageDraw.Draw(picture)
    for x, top, half in ((176, 62, 100), (74, 30, 104)):
        slope = half / (180 - top)
        pen.polygon([(x - half, 180), (x, top), (x + half, 180)], fill=SHADE)
        snow = 34
        pen.polygon(
            [(x - snow * slope, top + snow), (x, top), (x + snow * slope, top + snow)], fill="white"
        )
    hill(pen, 256, 256, horizon=0.7, crest=0.9, rise=0.03)
    figure(pen, 188, 240, 122)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the demo's control maps.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (castle, mountains):
        pixels = torch.from_numpy(np.array(draw())).permute(2, 0, 1)[None]
        lines = (line_art(pixels)[0, 0] * 255).byte().numpy()
        Image.fromarray(lines).convert("RGB").save(folder / f"{draw.__name__}.png", optimize=True)


if __name__ == "__main__":
    main()
