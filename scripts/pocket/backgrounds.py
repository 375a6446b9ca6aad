"""Twenty settings, drawn by program. Each painter draws on a pen, below a horizon in pixels."""

import math
from collections.abc import Callable
from random import Random

from pen import Pen, shaded
from PIL import Image
from vocabulary import COLOURS, INDOORS, TIMELESS

SKIES = {
    "day": ("#6fbff2", "#d4effc"),
    "sunset": ("#ee6a4c", "#ffd28a"),
    "night": ("#0e1440", "#2c3a80"),
    "dawn": ("#8d8fd8", "#ffc6cf"),
}
"""Colours of the sky, above and at the horizon."""
GREENS = ("#2f8f4a", "#3aa257", "#27804a")


class Stage:
    """One background in the making. h and w: pixels; ground: y of the horizon."""

    def __init__(self, size: tuple[int, int], style: str, time: str, rng: Random) -> None:
        self.w, self.h = size
        self.pen, self.rng, self.time = Pen(style), rng, time
        self.ground = self.h * rng.uniform(0.66, 0.74)

    def x(self, low: float = 0.0, high: float = 1.0) -> float:
        return self.w * self.rng.uniform(low, high)

    def fill(self, colour: str, top: float = -5) -> None:
        self.pen.rect(-5, top, self.w + 10, self.h + 10 - top, colour, outlined=False)

    def floor(self, colour: str) -> None:
        self.pen.rect(-5, self.ground, self.w + 10, self.h, colour)

    def hill(self, y: float, swing: float, waves: float, colour: str) -> None:
        """Ground up to a wavy line at y; waves: how many across the picture."""
        start = self.rng.random() * 6
        xs = range(-8, self.w + 17, 8)
        line = [(x, y + swing * math.sin(start + x / self.w * waves * math.tau)) for x in xs]
        self.pen.polygon([(-8, self.h + 8), *line, (self.w + 16, self.h + 8)], colour)


def background(
    setting: str, time: str, size: tuple[int, int], style: str, rng: Random
) -> tuple[Image.Image, float]:
    """The setting without anybody, RGBA, in its daylight colours, and the y of its horizon."""
    stage = Stage(size, style, time, rng)
    if setting not in INDOORS:
        _sky(stage, setting)
    _PAINTERS[setting](stage)
    above, below = SKIES[time]
    sky = (
        '<defs><linearGradient id="sky" x1="0" y1="0" x2="0" y2="1">'
        f'<stop offset="0" stop-color="{above}"/><stop offset="1" stop-color="{below}"/>'
        "</linearGradient></defs>"
    )
    return stage.pen.picture(size, defs=sky), stage.ground


def _sky(stage: Stage, setting: str) -> None:
    stage.fill("#0b0d2b" if setting in ("space", "moon") else "url(#sky)")
    if stage.time == "night" or setting in ("space", "moon"):
        _stars(stage)
    if setting not in TIMELESS:
        _heavens(stage)


def _stars(stage: Stage) -> None:
    for _ in range(stage.w * stage.h // 4200):
        y = stage.rng.random() * stage.ground
        stage.pen.circle(stage.x(), y, stage.rng.choice((1.4, 1.8, 2.4)), "#fff8dc", outlined=False)


def _heavens(stage: Stage) -> None:
    """Sun or moon, and clouds by day."""
    pen, rng, h = stage.pen, stage.rng, stage.h
    x, y = stage.x(0.12, 0.88), h * rng.uniform(0.12, 0.22)
    if stage.time == "night":
        pen.circle(x, y, h * 0.085, "#fdf3c0")
        pen.circle(x + h * 0.03, y - h * 0.02, h * 0.018, "#e6d89a", outlined=False)
        return
    if stage.time == "day":
        pen.circle(x, y, h * 0.085, "#ffd83d")
    else:
        pen.circle(
            x,
            stage.ground - h * 0.1,
            h * 0.13,
            {"dawn": "#fff0a8", "sunset": "#ffdf6b"}[stage.time],
        )
    for _ in range(rng.randint(1, 2)):
        _cloud(stage, stage.x(), h * rng.uniform(0.1, 0.28), h * rng.uniform(0.05, 0.07))


def _cloud(stage: Stage, x: float, y: float, s: float) -> None:
    stage.pen.path(
        f"M{x - 2 * s:.1f} {y + s:.1f} a{s:.1f} {s:.1f} 0 0 1 {s:.1f} {-s:.1f} "
        f"a{1.3 * s:.1f} {1.3 * s:.1f} 0 0 1 {2.2 * s:.1f} 0 "
        f"a{s:.1f} {s:.1f} 0 0 1 {s:.1f} {s:.1f} Z",
        "#ffffff",
    )


def _forest(stage: Stage) -> None:
    g, h = stage.ground, stage.h
    stage.hill(g - h * 0.05, h * 0.02, 1.5, "#3f8f58")
    count = max(5, round(stage.w / 34))
    for n in stage.rng.sample(range(count), count):
        x = (n + stage.rng.uniform(0.2, 0.8)) * stage.w / count
        _pine(stage, x, g + h * stage.rng.uniform(-0.04, 0.02), h * stage.rng.uniform(0.46, 0.64))
    stage.hill(g, h * 0.015, 2, "#5aa552")


def _pine(stage: Stage, x: float, y: float, s: float) -> None:
    green = stage.rng.choice(GREENS)
    stage.pen.rect(x - s * 0.06, y - s * 0.25, s * 0.12, s * 0.27, "#7a5230")
    for k in (0, 0.25, 0.5):
        half = s * (0.36 - k * 0.3)
        stage.pen.polygon(
            [(x - half, y - s * (0.2 + k)), (x, y - s * (0.62 + k)), (x + half, y - s * (0.2 + k))],
            green,
        )


def _round_tree(stage: Stage, x: float, y: float, s: float) -> None:
    stage.pen.rect(x - s * 0.06, y - s * 0.25, s * 0.12, s * 0.27, "#7a5230")
    stage.pen.circle(x, y - s * 0.58, s * 0.38, stage.rng.choice(GREENS))


def _city(stage: Stage) -> None:
    pen, rng, g, h = stage.pen, stage.rng, stage.ground, stage.h
    lit = "#ffe27a" if stage.time in ("night", "sunset") else "#d8ecf6"
    x = -8.0
    while x < stage.w:
        wide, high = rng.choice((40, 58)), h * rng.uniform(0.34, 0.6)
        wall = rng.choice(("#8aa0b8", "#b48a7a", "#7d8bb0", "#a7b0a0", "#c7a57a"))
        pen.rect(x, g - high, wide, high + 6, wall)
        for row in range(int((high - 12) // 22)):
            for column in range(wide // 19):
                if rng.random() < 0.75:
                    left, top = x + 6 + column * 18, g - high + 9 + row * 22
                    pen.rect(left, top, 9, 12, lit, outlined=False)
        x += wide
    pen.rect(-5, g, stage.w + 10, h * 0.07, "#b9b5ae")
    pen.rect(-5, g + h * 0.07, stage.w + 10, h, "#55585f")
    for left in range(0, stage.w, 56):
        pen.rect(left, h * 0.91, 28, 6, "#f2e6a0", outlined=False)


def _beach(stage: Stage) -> None:
    pen, g, h = stage.pen, stage.ground, stage.h
    pen.rect(-5, g - h * 0.16, stage.w + 10, h * 0.2, "#2f9fd0")
    stage.hill(g, h * 0.012, 1.2, "#f2dc9d")
    x = stage.w * stage.rng.choice((0.1, 0.9))
    pen.path(
        f"M{x - 4:.0f} {g + 6:.0f} q6 {-h * 0.25:.0f} 0 {-h * 0.45:.0f} l9 0 "
        f"q8 {h * 0.22:.0f} 3 {h * 0.45:.0f} Z",
        "#9a6a3a",
    )
    for angle in (-150, -100, -50, -10, 190):
        dx, dy = (f(math.radians(angle)) * h * k for f, k in ((math.cos, 0.22), (math.sin, 0.14)))
        pen.path(
            f"M{x:.0f} {g - h * 0.4:.0f} q{dx * 0.5:.0f} {dy - 16:.0f} {dx:.0f} {dy + 12:.0f} "
            f"q{-dx * 0.5:.0f} -10 {-dx:.0f} {-dy - 12:.0f} Z",
            "#3aa257",
        )


def _desert(stage: Stage) -> None:
    pen, g, h = stage.pen, stage.ground, stage.h
    stage.hill(g - h * 0.08, h * 0.05, 1, "#e3b566")
    stage.hill(g, h * 0.03, 1.4, "#f0cb7d")
    for _ in range(stage.rng.randint(1, 2)):
        x, y, s, green = stage.x(), g + h * 0.03, h * stage.rng.uniform(0.22, 0.32), "#3f8f4a"
        pen.rect(x - s * 0.25, y - s * 0.75, s * 0.16, s * 0.35, green, 4)
        pen.rect(x + s * 0.31, y - s * 0.65, s * 0.16, s * 0.3, green, 4)
        pen.rect(x - s * 0.2, y - s * 0.5, s * 0.6, s * 0.12, green, 4)
        pen.rect(x, y - s, s * 0.22, s, green, 5)


def _mountains(stage: Stage) -> None:
    pen, g, h = stage.pen, stage.ground, stage.h
    for middle in (0.2, 0.8, 0.5):
        x, m = (
            stage.w * (middle + stage.rng.uniform(-0.15, 0.15)),
            h * stage.rng.uniform(0.38, 0.56),
        )
        pen.polygon([(x - m * 0.8, g + 5), (x, g - m), (x + m * 0.8, g + 5)], "#8093ad")
        snow = [(-0.24, 0.7), (0, 1.0), (0.24, 0.7), (0.08, 0.62), (-0.06, 0.7)]
        pen.polygon([(x + m * dx, g - m * dy) for dx, dy in snow], "#ffffff")
    stage.hill(g, h * 0.02, 1.3, "#f1f6fb")


def _park(stage: Stage) -> None:
    g, h, w = stage.ground, stage.h, stage.w
    for _ in range(3):
        _round_tree(stage, stage.x(), g + 4, h * stage.rng.uniform(0.42, 0.6))
    stage.hill(g, h * 0.015, 1.4, "#7cc46a")
    path = [(0.42, g + 2), (0.56, g + 2), (0.8, h + 5), (0.2, h + 5)]
    stage.pen.polygon([(w * x, y) for x, y in path], "#e8d4a4")


def _house(stage: Stage, x: float, y: float, s: float, wall: str | None = None) -> None:
    pen, rng = stage.pen, stage.rng
    pen.rect(
        x, y - s * 0.6, s, s * 0.6, wall or rng.choice(("#f0d9b0", "#e8b89a", "#cfe0e8", "#e6d2ea"))
    )
    roof = [(-0.12, 0.58), (0.5, 1.1), (1.12, 0.58)]
    pen.polygon(
        [(x + s * dx, y - s * dy) for dx, dy in roof],
        rng.choice(("#c0563f", "#7a5aa0", "#4f7ab0")),
    )
    pen.rect(x + s * 0.56, y - s * 0.36, s * 0.24, s * 0.36, "#7a4a2a")
    pen.rect(x + s * 0.15, y - s * 0.46, s * 0.24, s * 0.22, "#ffe9a0")


def _village(stage: Stage) -> None:
    g, h = stage.ground, stage.h
    stage.hill(g - h * 0.1, h * 0.03, 1, "#8fcf7a")
    count = stage.rng.randint(2, 3)
    for n in range(count):
        x = stage.w * (n + stage.rng.uniform(0.05, 0.4)) / count
        _house(stage, x, g + 4, h * stage.rng.uniform(0.24, 0.32))
    stage.hill(g, h * 0.012, 1.4, "#8cc66a")


def _farm(stage: Stage) -> None:
    pen, g, h = stage.pen, stage.ground, stage.h
    stage.hill(g - h * 0.1, h * 0.03, 1, "#8fcf7a")
    _house(stage, stage.w * stage.rng.choice((0.08, 0.58)), g + 3, h * 0.38, "#c8443c")
    stage.hill(g, h * 0.012, 1.4, "#a9cf5f")
    pen.rect(-5, g - h * 0.03, stage.w + 10, 6, "#f3ead8")
    for x in range(8, stage.w, 34):
        pen.rect(x, g - h * 0.09, 8, h * 0.14, "#f3ead8")


def _castle(stage: Stage) -> None:
    pen, g, stone = stage.pen, stage.ground, "#a9a4b8"
    x, s = stage.x(0.32, 0.68), stage.h * 0.52
    for n in range(5):
        pen.rect(x - s * 0.42 + n * s * 0.18, g - s * 0.65, s * 0.1, s * 0.14, stone)
    pen.rect(x - s * 0.5, g - s * 0.55, s, s * 0.6, stone)
    for k in (-0.62, 0.4):
        pen.rect(x + s * k, g - s * 0.85, s * 0.22, s * 0.9, shaded(stone, 0.92))
        roof = [(k - 0.05, 0.84), (k + 0.11, 1.14), (k + 0.27, 0.84)]
        pen.polygon([(x + s * dx, g - s * dy) for dx, dy in roof], "#c0453f")
    pen.path(
        f"M{x - s * 0.12:.0f} {g + 3:.0f} v{-s * 0.22:.0f} "
        f"a{s * 0.12:.0f} {s * 0.12:.0f} 0 0 1 {s * 0.24:.0f} 0 v{s * 0.22:.0f} Z",
        "#5a3a26",
    )
    stage.hill(g, stage.h * 0.012, 1.4, "#79b860")


def _rooftop(stage: Stage) -> None:
    pen, rng, g, h = stage.pen, stage.rng, stage.ground, stage.h
    x = -5.0
    while x < stage.w:
        wide, high = rng.uniform(34, 56), h * rng.uniform(0.12, 0.4)
        pen.rect(x, g - high, wide, h, rng.choice(("#5f6f96", "#7a7fa6", "#54628a")))
        x += wide
    pen.rect(-5, g - 2, stage.w + 10, h * 0.06, "#b06a50")
    pen.rect(-5, g + h * 0.06, stage.w + 10, h, "#8a5a4a")
    left = stage.w * rng.choice((0.06, 0.8))
    pen.rect(left, g - h * 0.2, h * 0.14, h * 0.22, "#b5533c")
    pen.rect(left - 4, g - h * 0.23, h * 0.14 + 8, h * 0.05, "#cf6a4e")


def _graveyard(stage: Stage) -> None:
    pen, g, h = stage.pen, stage.ground, stage.h
    x, s = stage.w * stage.rng.choice((0.1, 0.9)), h * 0.5
    trunk = "#4a3b38"
    for dx, dy, width in ((0, 0.45, 9), (-0.22, 0.8, 6), (0.24, 0.76, 6), (0.02, 0.9, 6)):
        pen.line([(x, g - s * 0.2), (x, g - s * 0.4), (x + s * dx, g - s * dy)], trunk, width)
    pen.line([(x, g + 6), (x, g - s * 0.4)], trunk, 12)
    stage.hill(g, h * 0.015, 1.5, "#5c7355")
    for n in range(4):
        left, s = stage.w * (n + stage.rng.uniform(0.1, 0.5)) / 4, h * stage.rng.uniform(0.15, 0.2)
        pen.path(
            f"M{left:.0f} {g + h * 0.05:.0f} v{-s * 0.7:.0f} "
            f"a{s * 0.35:.0f} {s * 0.35:.0f} 0 0 1 {s * 0.7:.0f} 0 v{s * 0.7:.0f} Z",
            "#9a9fa8",
        )


def _sea(stage: Stage) -> None:
    for n, blue in enumerate(("#3f9fd8", "#3590cc", "#2b80bd", "#216fab")):
        y = stage.ground - stage.h * 0.08 + n * stage.h * 0.11
        waves = "q12 -11 24 0" + " t24 0" * (stage.w // 24 + 2)
        stage.pen.path(f"M{-24 + n * 9} {y:.0f} {waves} V{stage.h + 8} H-24 Z", blue)


def _underwater(stage: Stage) -> None:
    pen, rng, h = stage.pen, stage.rng, stage.h
    stage.fill("#1f78b4")
    for _ in range(rng.randint(4, 6)):
        x, s = stage.x(), h * rng.uniform(0.18, 0.38)
        pen.path(
            f"M{x:.0f} {h * 0.9:.0f} q-14 {-s * 0.5:.0f} 0 {-s:.0f} q20 {s * 0.5:.0f} 14 {s:.0f} Z",
            rng.choice(("#2fa06a", "#d2577a", "#e0884a")),
        )
    stage.hill(h * 0.86, h * 0.02, 1.4, "#e3cf94")
    for _ in range(7):
        pen.circle(stage.x(), rng.random() * h * 0.7, rng.uniform(3, 6.5), "#8fd0f0")


def _space(stage: Stage) -> None:
    x, h = stage.x(0.15, 0.85), stage.h
    y, r = h * stage.rng.uniform(0.18, 0.36), h * stage.rng.uniform(0.1, 0.16)
    stage.pen.circle(x, y, r, stage.rng.choice(("#d98a4f", "#5aa9d6", "#9a6fd0", "#5fbf86")))
    if stage.rng.random() < 0.6:
        stage.pen.ring(x, y, r * 1.7, r * 0.35, "#f0d9a0", 5)


def _moon(stage: Stage) -> None:
    stage.pen.circle(stage.x(0.2, 0.8), stage.h * 0.22, stage.h * 0.11, "#4f9fe0")
    stage.hill(stage.ground, stage.h * 0.02, 1.2, "#b9bcc6")
    for n in range(4):
        x, y = stage.w * (n + stage.rng.random()) / 4, stage.rng.uniform(0.08, 0.24) * stage.h
        stage.pen.ellipse(x, stage.ground + y, stage.rng.uniform(12, 22), 6, "#9498a6")


def _cave(stage: Stage) -> None:
    pen, g, h, w = stage.pen, stage.ground, stage.h, stage.w
    stage.fill("#3b3346")
    pen.path(
        f"M{w * 0.08:.0f} {g:.0f} Q{w * 0.5:.0f} {-h * 0.3:.0f} {w * 0.92:.0f} {g:.0f} Z", "#6a5c7c"
    )
    stage.floor("#7a6659")
    for n in range(7):
        x, s = w * (n + stage.rng.random()) / 7, h * stage.rng.uniform(0.1, 0.26)
        pen.polygon([(x - 12, -5), (x + 12, -5), (x, s)], "#2c2636")


def _window(stage: Stage) -> None:
    pen, x, s, y = stage.pen, stage.x(0.33, 0.5), stage.h * 0.28, stage.h * 0.1
    pen.rect(x, y, s, s, "#ffffff")
    pen.rect(x + 5, y + 5, s - 10, s - 10, "url(#sky)")
    pen.rect(x + s / 2 - 3, y, 6, s, "#ffffff", outlined=False)


def _bedroom(stage: Stage) -> None:
    pen, g, h, w = stage.pen, stage.ground, stage.h, stage.w
    stage.fill(stage.rng.choice(("#f3d9c4", "#cfdcf2", "#e6d2ea")))
    stage.floor("#b98a5e")
    _window(stage)
    x = w * stage.rng.choice((0.04, 0.58))
    pen.rect(x + 9, g - h * 0.16, w * 0.11, h * 0.09, "#ffffff", 6)
    pen.rect(x, g - h * 0.1, w * 0.38, h * 0.17, "#4f76c0", 7)
    pen.rect(x, g - h * 0.24, 10, h * 0.33, "#7a4a2a")


def _kitchen(stage: Stage) -> None:
    pen, g, h, w = stage.pen, stage.ground, stage.h, stage.w
    stage.fill(stage.rng.choice(("#fbeecb", "#d9efe2")))
    stage.floor("#d9c9b4")
    _window(stage)
    x = w * stage.rng.choice((0.04, 0.58))
    pen.rect(x, g - h * 0.22, w * 0.36, h * 0.28, "#7fa894")
    pen.rect(x + 10, g - h * 0.16, w * 0.11, h * 0.19, "#e6efe8")
    pen.rect(x - 5, g - h * 0.26, w * 0.36 + 10, h * 0.05, "#f0f0ea")
    pen.circle(x + w * 0.25, g - h * 0.31, h * 0.06, "#d04a3f")


def _library(stage: Stage) -> None:
    pen, rng, h = stage.pen, stage.rng, stage.h
    stage.fill(rng.choice(("#7a5238", "#8a6246")))
    stage.floor("#5a3a26")
    for row in range(3):
        base = h * (0.21 + row * 0.22)
        x = float(rng.randint(2, 8))
        while x < stage.w:
            wide, high = rng.uniform(11, 20), h * rng.uniform(0.12, 0.17)
            pen.rect(x, base - high, wide, high, rng.choice(list(COLOURS.values())))
            x += wide + rng.choice((0, 0, 0, 12))
        pen.rect(-5, base, stage.w + 10, 8, "#3c2718")


def _laboratory(stage: Stage) -> None:
    pen, rng, g, h, w = stage.pen, stage.rng, stage.ground, stage.h, stage.w
    stage.fill(rng.choice(("#dfe9ee", "#cfe0e6")))
    stage.floor("#b4bec6")
    x = w * rng.choice((0.04, 0.54))
    for leg in (x + 6, x + w * 0.42 - 16):
        pen.rect(leg, g - h * 0.14, 10, h * 0.2, "#8a949c")
    pen.rect(x, g - h * 0.18, w * 0.42, h * 0.06, "#f4f6f8")
    for n in range(3):
        left = x + w * 0.06 + n * w * 0.13
        pen.path(
            f"M{left:.0f} {g - h * 0.38:.0f} h12 v{h * 0.08:.0f} l9 {h * 0.12:.0f} h-30 "
            f"l9 {-h * 0.12:.0f} Z",
            rng.choice(("#6fd06f", "#d06fd0", "#5fb0e8", "#f0a040")),
        )


_PAINTERS: dict[str, Callable[[Stage], None]] = {
    "forest": _forest,
    "city": _city,
    "beach": _beach,
    "desert": _desert,
    "mountains": _mountains,
    "park": _park,
    "village": _village,
    "castle": _castle,
    "rooftop": _rooftop,
    "farm": _farm,
    "graveyard": _graveyard,
    "cave": _cave,
    "bedroom": _bedroom,
    "kitchen": _kitchen,
    "library": _library,
    "laboratory": _laboratory,
    "sea": _sea,
    "underwater": _underwater,
    "space": _space,
    "moon": _moon,
}
