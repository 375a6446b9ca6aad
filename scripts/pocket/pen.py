"""Drawing by program: SVG shapes, icons, and the few operations on pictures that scenes need."""

import io
import json
import math
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import resvg_py
from PIL import Image, ImageFilter, ImageOps

ICONS = Path(__file__).parent / "art" / "icons.json"
ICON_PIXELS = 192
INK = {"flat": "", "comic": "#16161c", "pastel": "#8a7f86"}
"""Colour of outlines in each style; the flat one has none."""
INK_WIDTH = {"flat": 0.0, "comic": 2.6, "pastel": 1.4}
"""Pixels."""
Size = tuple[int, int]
Colour = tuple[int, int, int]


class Pen:
    """Collects shapes, outlined as a style wants it; coordinates are pixels."""

    def __init__(self, style: str, scale: float = 1.0) -> None:
        """scale: pixels of one unit of the drawing, so that outlines come out alike."""
        self.shapes: list[str] = []
        self.width = INK_WIDTH[style] / scale
        self.ink = INK[style]
        self.outline = (
            f' stroke="{self.ink}" stroke-width="{self.width:.2f}" stroke-linejoin="round"'
            if self.ink
            else ""
        )

    def path(self, d: str, fill: str, outlined: bool = True) -> None:
        self.shapes.append(f'<path d="{d}" fill="{fill}"{self.outline if outlined else ""}/>')

    def polygon(self, points: list[tuple[float, float]], fill: str, outlined: bool = True) -> None:
        self.path("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points) + " Z", fill, outlined)

    def line(self, points: list[tuple[float, float]], colour: str, width: float) -> None:
        """A thick round line, outlined."""
        d = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        ends = 'fill="none" stroke-linecap="round" stroke-linejoin="round"'
        if self.ink:
            wide = width + 1.6 * self.width
            self.shapes.append(
                f'<path d="{d}" {ends} stroke="{self.ink}" stroke-width="{wide:.1f}"/>'
            )
        self.shapes.append(f'<path d="{d}" {ends} stroke="{colour}" stroke-width="{width:.1f}"/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        round_by: float = 0,
        outlined: bool = True,
    ) -> None:
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{round_by:.1f}" fill="{fill}"{self.outline if outlined else ""}/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str, outlined: bool = True) -> None:
        self.ellipse(x, y, r, r, fill, outlined)

    def ellipse(
        self, x: float, y: float, rx: float, ry: float, fill: str, outlined: bool = True
    ) -> None:
        self.shapes.append(
            f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{rx:.1f}" ry="{ry:.1f}" '
            f'fill="{fill}"{self.outline if outlined else ""}/>'
        )

    def ring(self, x: float, y: float, rx: float, ry: float, colour: str, width: float) -> None:
        self.shapes.append(
            f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{rx:.1f}" ry="{ry:.1f}" '
            f'fill="none" stroke="{colour}" stroke-width="{width:.1f}"/>'
        )

    def picture(self, size: Size, view: Size | None = None, defs: str = "") -> Image.Image:
        """All shapes as RGBA. view: the units that fill `size`, where they are not pixels."""
        wide, high = view or size
        return rasterised(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
            f'width="{size[0]}" height="{size[1]}">{defs}{"".join(self.shapes)}</svg>'
        )


def rasterised(svg: str, width: int | None = None) -> Image.Image:
    """An SVG document as RGBA."""
    data = resvg_py.svg_to_bytes(svg_string=svg, width=width, skip_system_fonts=True)
    return Image.open(io.BytesIO(bytes(data))).convert("RGBA")


@cache
def _icons() -> dict[str, dict]:
    return json.loads(ICONS.read_text(encoding="utf-8"))


@cache
def icon(name: str) -> Image.Image:
    """The icon `set/name`, trimmed, RGBA, at most `ICON_PIXELS` wide and high."""
    drawing = _icons()[name]
    side = drawing["size"]
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {side} {side}">{drawing["body"]}</svg>'
    )
    picture = rasterised(svg, ICON_PIXELS)
    return picture.crop(picture.getbbox())


@lru_cache(4096)
def sticker(name: str, width: int, height: int, style: str, hue: int | None = None) -> Image.Image:
    """An icon fitted into a box of pixels, outlined as the style wants it; do not change it."""
    picture = icon(name)
    share = min(width / picture.width, height / picture.height)
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    if hue is not None:
        picture = repainted(picture, hue)
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    return outlined(picture, style) if INK[style] else picture


def outlined(picture: Image.Image, style: str) -> Image.Image:
    """A cut-out (RGBA) with a line drawn around it; grows by two pixels or three on each side."""
    pixels = {"comic": 2, "pastel": 1}[style]
    picture = ImageOps.expand(picture, pixels + 1, (0, 0, 0, 0))
    solid = picture.getchannel("A").point([0] * 111 + [255] * 145)
    around = solid.filter(ImageFilter.MaxFilter(2 * pixels + 1))
    line = Image.new("RGBA", picture.size, (*rgb(INK[style]), 0))
    line.putalpha(around.filter(ImageFilter.GaussianBlur(0.6)))
    line.alpha_composite(picture)
    return line


def repainted(picture: Image.Image, hue: int) -> Image.Image:
    """The same with the hue, of 256, of all its colours; greys stay."""
    hsv = np.array(picture.convert("RGB").convert("HSV"))
    hsv[..., 0][hsv[..., 1] > 70] = hue
    painted = Image.fromarray(hsv, "HSV").convert("RGB")
    painted.putalpha(picture.getchannel("A"))
    return painted


def tinted(picture: Image.Image, share: tuple[float, float, float]) -> Image.Image:
    """Red, green and blue each multiplied by a share; alpha (if any) stays."""
    table = [min(255, round(v * k)) for k in share for v in range(256)]
    if picture.mode == "RGBA":
        table += range(256)
    return picture.point(table)


def mixed(picture: Image.Image, colour: Colour, share: float) -> Image.Image:
    """An RGB picture with a share of one colour laid over it."""
    return Image.blend(picture, Image.new("RGB", picture.size, colour), share)


def paste(canvas: Image.Image, picture: Image.Image, x: float, y: float) -> None:
    """Lay an RGBA picture over an RGBA canvas, its corner at (x, y), which may be outside."""
    left, top = math.floor(x), math.floor(y)
    cut = picture.crop((max(0, -left), max(0, -top), picture.width, picture.height))
    if cut.width and cut.height:
        canvas.alpha_composite(cut, (max(0, left), max(0, top)))


def rgb(colour: str) -> Colour:
    """#rrggbb as three numbers."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def shaded(colour: str, share: float) -> str:
    """#rrggbb, each channel multiplied by a share."""
    return "#" + "".join(f"{min(255, int(v * share)):02x}" for v in rgb(colour))
