"""Composes a captioned scene: a background, a cast, light, weather and a style.

    python scripts/pocket/scenes.py sheet.png [--first N]

writes a sheet of scenes with their captions, to look at.
"""

import argparse
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from backgrounds import background
from captions import Facts, Subject, caption, imagine
from figures import figure, thing
from pen import Pen, mixed, outlined, paste, sticker, tinted
from PIL import Image, ImageDraw, ImageOps
from plainly import plainly
from vocabulary import MOODS, SIZES, THINGS, TIMELESS

LIGHT = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (1.0, 0.82, 0.70),
    "night": (0.50, 0.55, 0.86),
    "dawn": (0.95, 0.86, 0.95),
}
"""Shares of red, green and blue that fall on the background."""
SPOTLIGHT = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (1.0, 0.92, 0.86),
    "night": (0.78, 0.80, 0.98),
    "dawn": (0.98, 0.94, 0.98),
}
"""The same for the cast, so that its colours can be told."""
SHOT_SCALE = {"medium": 1.0, "close": 1.55, "wide": 0.64}
ACROSS = {"left": 0.27, "centre": 0.5, "right": 0.73}
"""Where a subject stands, as a share of the width."""
HOLD_OUT_SEED = 1_000_000_000
"""Scenes from this seed on are never trained on."""


@dataclass(frozen=True)
class Scene:
    """picture: RGB."""

    picture: Image.Image
    caption: str
    facts: Facts


def compose(seed: int, size: tuple[int, int], facts: Facts | None = None) -> Scene:
    """The scene of that seed and size (width, height): of the given facts or of random ones."""
    rng = Random(seed)
    facts = facts or imagine(rng, size)
    canvas, ground = background(facts.setting, facts.time, size, facts.style, rng)
    if facts.setting not in TIMELESS:
        canvas = tinted(canvas, LIGHT[facts.time])
    for subject in facts.subjects:
        _place(canvas, ground, subject, facts, rng)
    picture = finished(canvas.convert("RGB"), facts, rng)
    return Scene(picture, caption(facts, rng), facts)


def _place(canvas: Image.Image, ground: float, subject: Subject, facts: Facts, rng: Random) -> None:
    w, h = canvas.size
    tall = min(h * 0.74, w * 0.8) * SHOT_SCALE[facts.shot] * rng.uniform(0.93, 1.05)
    tall *= 0.9 if len(facts.subjects) == 2 else 1.0
    x = w * (ACROSS[subject.place] + rng.uniform(-0.02, 0.02))
    if subject.is_figure:
        picture, top = _figure(canvas, ground, x, tall, subject, facts)
    else:
        picture, top = _thing(canvas.size, ground, tall, subject, facts, rng)
    alone = len(facts.subjects) == 1
    turned = rng.random() < 0.5 if alone else subject.place == "right"
    if turned:
        picture = ImageOps.mirror(picture)
    if facts.setting not in TIMELESS:
        picture = tinted(picture, SPOTLIGHT[facts.time])
    paste(canvas, picture, x - picture.width / 2, top)
    if subject.mood:
        side = min(w, h, tall) * 0.2
        box = round(max(20, side))
        sign = sticker(MOODS[subject.mood], box, box, "flat")
        left = x + (-0.33 if turned else 0.33) * tall - sign.width / 2
        left = min(w - sign.width - 2, max(2, left))
        paste(canvas, sign, left, max(2, top + tall * 0.02))


def _figure(
    canvas: Image.Image, ground: float, x: float, tall: float, subject: Subject, facts: Facts
) -> tuple[Image.Image, float]:
    """The figure and the y of its top."""
    h = canvas.height
    foot = h * 1.28 if facts.shot == "close" else h * min(0.97, ground / h + 0.2)
    afloat = facts.setting in ("space", "underwater")
    if afloat:
        foot = h * (1.2 if facts.shot == "close" else 0.86)
    elif facts.shot != "close":
        _shadow(canvas, x, foot, tall)
    if subject.pose == "jumping" and facts.shot != "close":
        foot -= h * 0.12
    picture = figure(
        subject.noun, subject.colour, subject.pose, subject.prop, round(tall), facts.style
    )
    return picture, foot - tall


def _shadow(canvas: Image.Image, x: float, foot: float, tall: float) -> None:
    pen = Pen("flat")
    width, height = round(tall * 0.44), max(4, round(tall * 0.09))
    pen.ellipse(width / 2, height / 2, width / 2 - 1, height / 2 - 1, "#000000")
    shadow = pen.picture((width, height))
    shadow.putalpha(shadow.getchannel("A").point([v * 72 // 255 for v in range(256)]))
    paste(canvas, shadow, x - width / 2, foot - height * 0.7)


def _thing(
    size: tuple[int, int],
    ground: float,
    tall: float,
    subject: Subject,
    facts: Facts,
    rng: Random,
) -> tuple[Image.Image, float]:
    """The thing and the y of its top."""
    w, h = size
    kind = THINGS[subject.noun]
    high = kind.height * tall * 1.4
    room = w * (0.5 if len(facts.subjects) == 2 else 0.62)
    picture = thing(
        subject.noun, subject.colour, round(min(high * 1.3, room)), round(high), facts.style
    )
    match kind.habitat:
        case "air":
            top = h * rng.uniform(0.14, 0.3)
        case "sea" if facts.setting == "underwater":
            top = h * rng.uniform(0.3, 0.34)
        case "sea" | "boat":
            top = h * 0.82 - picture.height
        case _:
            top = h * min(0.95, ground / h + 0.17) - picture.height
    return picture, max(h * 0.02, min(top, h - picture.height * 0.8))


def finished(picture: Image.Image, facts: Facts, rng: Random) -> Image.Image:
    """The picture (RGB) in its style, with its weather."""
    if facts.style == "pastel":
        picture = mixed(picture, (255, 250, 245), 0.34)
    match facts.weather:
        case "foggy":
            return mixed(picture, (215, 220, 226), 0.45)
        case "rainy" | "stormy":
            picture = tinted(picture, (0.78, 0.82, 0.9))
        case None:
            return picture
    canvas = picture.convert("RGBA")
    canvas.alpha_composite(_falling(picture.size, facts.weather == "snowy", rng))
    if facts.weather == "stormy":
        bolt = outlined(_bolt(round(picture.height * 0.4)), "comic")
        paste(canvas, bolt, picture.width * rng.uniform(0.1, 0.8), -2)
    return canvas.convert("RGB")


def _falling(size: tuple[int, int], snow: bool, rng: Random) -> Image.Image:
    pen, (w, h) = Pen("flat"), size
    for _ in range(w * h // 2400):
        x, y = rng.random() * w, rng.random() * h
        if snow:
            pen.circle(x, y, rng.uniform(2.2, 3.6), "#ffffff")
        else:
            pen.line([(x, y), (x - 5, y + 17)], "#dcecff", 2.2)
    return pen.picture(size)


@lru_cache(8)
def _bolt(height: int) -> Image.Image:
    pen = Pen("flat")
    shape = [(50, 0), (18, 48), (38, 48), (8, 100), (72, 36), (46, 36), (80, 0)]
    pen.polygon([(float(x), float(y)) for x, y in shape], "#ffe95a")
    return pen.picture((round(height * 0.8), height), (80, 100))


def sheet(scenes: list[Scene], columns: int = 6) -> Image.Image:
    """The scenes in rows, each with its caption below."""
    wide, high = max(w for w, _ in SIZES) + 8, max(h for _, h in SIZES) + 60
    rows = -(-len(scenes) // columns)
    page = Image.new("RGB", (wide * columns, high * rows), "white")
    pen = ImageDraw.Draw(page)
    for n, scene in enumerate(scenes):
        x, y = n % columns * wide, n // columns * high
        page.paste(scene.picture, (x + 4, y + 4))
        text = "\n".join(textwrap.wrap(scene.caption, 60))
        pen.multiline_text((x + 4, y + scene.picture.height + 8), text, fill="black")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a sheet of composed scenes.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--first", type=int, default=0, help="seed of the first scene")
    arguments = parser.parse_args()
    scenes = [compose(arguments.first + n, SIZES[n % len(SIZES)]) for n in range(30)]
    sheet(scenes, 5).save(arguments.file)


if __name__ == "__main__":
    with plainly(ValueError):
        main()
