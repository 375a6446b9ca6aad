"""The cast: figures (the icon of a head on a drawn body) and things (an icon alone)."""

from pen import Pen, paste, shaded, sticker
from PIL import Image
from vocabulary import COLOURS, FIGURES, HUES, PROPS, THINGS

Points = list[tuple[float, float]]

UNITS = (130, 100)
"""Width and height of a figure's drawing; it stands in the middle and looks to the right."""
MIDDLE = 65
NECK = 50
"""Where a head's chin is, in units from the top."""
ARM, LEG, HAND = 8.5, 9.5, 5.0

LEFT_ARM: Points = [(-11, 47), (-18, 58), (-17, 68)]
RIGHT_ARM: Points = [(11, 47), (18, 58), (17, 68)]
LEFT_LEG: Points = [(-6, 70), (-7, 84), (-8, 96)]
RIGHT_LEG: Points = [(6, 70), (7, 84), (8, 96)]
STILL = (LEFT_ARM, RIGHT_ARM, LEFT_LEG, RIGHT_LEG)
"""Shoulder, elbow, hand; hip, knee, foot: across from the middle, down from the top."""
LIMBS: dict[str | None, tuple[Points, Points, Points, Points]] = {
    "waving": (LEFT_ARM, [(11, 47), (24, 42), (29, 24)], LEFT_LEG, RIGHT_LEG),
    "cheering": (
        [(-11, 47), (-24, 38), (-30, 18)],
        [(11, 47), (24, 38), (30, 18)],
        LEFT_LEG,
        RIGHT_LEG,
    ),
    "pointing": (LEFT_ARM, [(11, 47), (26, 47), (44, 45)], LEFT_LEG, RIGHT_LEG),
    "walking": (
        [(-11, 47), (-20, 56), (-26, 63)],
        [(11, 47), (18, 57), (26, 60)],
        [(-4, 70), (-8, 84), (-17, 95)],
        [(4, 70), (12, 82), (16, 95)],
    ),
    "running": (
        [(-11, 47), (-26, 54), (-33, 46)],
        [(11, 47), (22, 58), (35, 50)],
        [(-4, 70), (-16, 80), (-34, 80)],
        [(4, 70), (22, 76), (22, 95)],
    ),
    "jumping": (
        [(-11, 47), (-26, 40), (-36, 28)],
        [(11, 47), (26, 40), (36, 28)],
        [(-6, 70), (-19, 78), (-13, 91)],
        [(6, 70), (21, 78), (17, 91)],
    ),
    "sitting": (
        LEFT_ARM,
        RIGHT_ARM,
        [(-4, 72), (14, 74), (14, 94)],
        [(4, 72), (22, 74), (22, 94)],
    ),
}
HOLDING: Points = [(11, 47), (22, 57), (33, 50)]


def figure(
    noun: str, shirt: str | None, pose: str | None, prop: str | None, height: int, style: str
) -> Image.Image:
    """A figure, RGBA, `height` pixels high and 1.3 times as wide."""
    scale = height / UNITS[1]
    body = _body(noun, shirt, pose, prop, style, scale)
    face = FIGURES[noun]
    wide, high, chin = (52, 53, NECK + 8) if face.bust else (48, 52, NECK)
    head = sticker(face.icon, round(wide * scale), round(high * scale), style)
    paste(body, head, MIDDLE * scale - head.width / 2, max(0, chin * scale - head.height))
    if prop:
        held = sticker(PROPS[prop], round(31 * scale), round(31 * scale), style)
        x = min(body.width - held.width, (MIDDLE + 35) * scale - held.width / 2)
        paste(body, held, x, max(0, 48 * scale - held.height * 0.6))
    return body


def _body(
    noun: str, shirt: str | None, pose: str | None, prop: str | None, style: str, scale: float
) -> Image.Image:
    pen, skin = Pen(style, scale), FIGURES[noun].skin
    cloth = COLOURS[shirt] if shirt else "#6f7fa0"
    trousers = "#4a4038" if shirt == "blue" else "#3d4a6b"
    left_arm, right_arm, left_leg, right_leg = (
        [(MIDDLE + x, y) for x, y in limb] for limb in LIMBS.get(pose, STILL)
    )
    if prop:
        right_arm = [(MIDDLE + x, y) for x, y in HOLDING]
    if pose == "sitting":
        pen.rect(MIDDLE - 20, 74, 32, 25, "#a9743f", 2)
    pen.line(left_arm, cloth, ARM)
    pen.circle(*left_arm[-1], HAND, skin)
    for leg in (left_leg, right_leg):
        pen.line(leg, trousers, LEG)
        pen.ellipse(leg[-1][0] + 3, leg[-1][1], 7, 4, "#4a3328")
    pen.path(
        f"M{MIDDLE - 12} 44 Q{MIDDLE} 40 {MIDDLE + 12} 44 L{MIDDLE + 14} 74 "
        f"Q{MIDDLE} 78 {MIDDLE - 14} 74 Z",
        cloth,
    )
    pen.line(right_arm, shaded(cloth, 0.94), ARM)
    pen.circle(*right_arm[-1], HAND, skin)
    return pen.picture((round(UNITS[0] * scale), round(UNITS[1] * scale)), UNITS)


def thing(noun: str, colour: str | None, width: int, height: int, style: str) -> Image.Image:
    """A thing, RGBA, in a box of pixels; do not change it."""
    hue = HUES[colour] if colour else None
    return sticker(THINGS[noun].icon, width, height, style, hue)
