"""People of a comic, each in many emotions and poses: what a character LoRA learns from.

    python scripts/pocket/people.py sheet.png

writes a sheet of them, to look at. The drawings are those of the npm package comicgen 1.9.9 (no
relation of this project), with fewer digits; all are CC0, and `art/people.json` names the artists.
"""

import argparse
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from pen import rasterised
from PIL import Image, ImageDraw
from plainly import plainly

ART = Path(__file__).parent / "art" / "people.json"
UNITS = (500, 600)
"""Width and height of the canvas that all the art is drawn on."""
SHEET_HEIGHT = 170
BACKDROP = "#e8eef4"

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Person:
    """SVG markup of one person.

    noun: what one sees, without an article; credit: the artist and the licence; face_in_front:
    whether the emotion is painted over the pose; shared: elements that several of the others
    refer to; emotions, poses: a head and a body each, by the words for it.
    """

    noun: str
    credit: str
    face_in_front: bool
    shared: str
    emotions: dict[str, str]
    poses: dict[str, str]


PEOPLE = {name: Person(**fields) for name, fields in json.loads(ART.read_text()).items()}
NAMES = tuple(PEOPLE)
EMOTIONS = {name: tuple(person.emotions) for name, person in PEOPLE.items()}
"""Adjectives, for example `happy`."""
POSES = {name: tuple(person.poses) for name, person in PEOPLE.items()}
"""What may follow the name, for example `pointing` or `with folded arms`."""


@lru_cache(256)
def figure(name: str, emotion: str, pose: str, height: int) -> Image.Image:
    """A person, RGBA, trimmed and `height` pixels high; do not change it."""
    box = painted(name, emotion, pose)
    return _picture(name, emotion, pose, box, (max(1, round(box[2] * height / box[3])), height))


@cache
def painted(name: str, emotion: str, pose: str) -> Box:
    """Left, top, width and height of the painted part of the canvas, in whole units."""
    picture = _picture(name, emotion, pose, (0, 0, *UNITS), UNITS)
    bounds = picture.getchannel("A").getbbox()
    assert bounds, f"{name}, {emotion}, {pose}: nothing is painted"
    left, top, right, bottom = bounds
    return left, top, right - left, bottom - top


def _picture(name: str, emotion: str, pose: str, box: Box, size: tuple[int, int]) -> Image.Image:
    """The part of the canvas in `box` (units), as RGBA of `size` (width and height in pixels)."""
    person = PEOPLE[name]
    layers = [person.emotions[emotion], person.poses[pose]]
    if person.face_in_front:
        layers.reverse()
    view = " ".join(map(str, box))
    return rasterised(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="{size[0]}" '
        f'height="{size[1]}" preserveAspectRatio="none"><defs>{person.shared}</defs>'
        f'<svg width="{UNITS[0]}" height="{UNITS[1]}">{"".join(layers)}</svg></svg>'
    )


def looks(name: str) -> list[tuple[str, str]]:
    """Pairs of emotion and pose in which each of either occurs."""
    emotions, poses = EMOTIONS[name], POSES[name]
    return [
        (emotions[n % len(emotions)], poses[n % len(poses)])
        for n in range(max(len(emotions), len(poses)))
    ]


def sheet(columns: int = 6) -> Image.Image:
    """Every emotion and every pose of every person, with the words below."""
    cells = [(name, *look) for name in NAMES for look in looks(name)]
    wide, high = 190, SHEET_HEIGHT + 42
    page = Image.new("RGB", (wide * columns, high * -(-len(cells) // columns)), BACKDROP)
    pen = ImageDraw.Draw(page)
    for n, (name, emotion, pose) in enumerate(cells):
        picture = figure(name, emotion, pose, SHEET_HEIGHT)
        x, y = n % columns * wide, n // columns * high
        page.paste(picture, (x + (wide - picture.width) // 2, y + 4), picture)
        pen.multiline_text((x + 6, y + SHEET_HEIGHT + 8), f"{emotion} {name}\n{pose}", "black")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a sheet of all the people.")
    parser.add_argument("file", type=Path)
    sheet().save(parser.parse_args().file)


if __name__ == "__main__":
    with plainly(ValueError):
        main()
