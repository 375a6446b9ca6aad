"""Lay out the pictures of an output folder on one sheet, panel after panel by their names.

python scripts/contact_sheet.py outputs/demo sheet.png
"""

import argparse
import json
from itertools import groupby
from pathlib import Path

from PIL import Image

HEIGHT, GAP, WIDTH = 160, 6, 1024


def main(folder: Path, sheet: Path) -> None:
    """Write the sheet of `folder` to the file `sheet`."""
    candidates = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["candidates"]
    done = [each for each in candidates if each["status"] == "done"]
    if not done:
        raise SystemExit(f"{folder} holds no finished picture yet: render the storyboard first.")
    strips = [
        [_scaled(folder / each["file"]) for each in panel]
        for _, panel in groupby(done, lambda each: each["panel"])
    ]
    _paste(_rows(strips)).save(sheet)


def _scaled(file: Path) -> Image.Image:
    with Image.open(file) as picture:
        width = round(picture.width * HEIGHT / picture.height)
        return picture.convert("RGB").resize((width, HEIGHT), Image.Resampling.LANCZOS)


def _rows(strips: list[list[Image.Image]]) -> list[list[Image.Image]]:
    """As many panels in a row as fit; a panel stays together."""
    rows: list[list[Image.Image]] = [[]]
    for strip in strips:
        if rows[-1] and _width(rows[-1] + strip) > WIDTH:
            rows.append([])
        rows[-1] += strip
    return rows


def _width(row: list[Image.Image]) -> int:
    return sum(picture.width + GAP for picture in row) + GAP


def _paste(rows: list[list[Image.Image]]) -> Image.Image:
    size = (max(map(_width, rows)), (HEIGHT + GAP) * len(rows) + GAP)
    sheet = Image.new("RGB", size, "white")
    for number, row in enumerate(rows):
        x = GAP
        for picture in row:
            sheet.paste(picture, (x, GAP + number * (HEIGHT + GAP)))
            x += picture.width + GAP
    return sheet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="that comicgen rendered into")
    parser.add_argument("sheet", type=Path, help="the file to write, such as sheet.png")
    arguments = parser.parse_args()
    try:
        main(arguments.folder, arguments.sheet)
    except (OSError, KeyError, TypeError, ValueError) as error:
        why = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SystemExit(f"No sheet of {arguments.folder} as {arguments.sheet}: {why}") from error
