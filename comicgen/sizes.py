"""Picture sizes: the sizes a model was trained on, and which one an aspect ratio gets."""

import math
import re
from dataclasses import dataclass
from functools import cache

from comicgen.errors import InputError

SMALLEST, LARGEST = 64, 4096
FURTHEST = 1.15
"""An aspect may differ from a trained one by this factor."""

# SDXL, arXiv 2307.01952, appendix I; every size counts lying and standing.
_SDXL = (
    "2048x512 1984x512 1920x512 1856x512 1792x576 1728x576 1664x576 1600x640 1536x640 1472x704 "
    "1408x704 1344x704 1344x768 1280x768 1216x832 1152x832 1152x896 1088x896 1088x960 1024x960 "
    "1024x1024"
)
_TRAINED = {128: _SDXL, 32: "384x256 320x192 256x256"}
_USUAL_ASPECTS = ("1:1", "4:3", "3:2", "16:9", "21:9", "3:1", "4:1")


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """Width and height of a picture in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def ratio(self) -> float:
        """Width over height."""
        return self.width / self.height


@cache
def trained_sizes(sample_size: int) -> tuple[Size, ...]:
    """The sizes that a model with latents of `sample_size` was trained on; () if not known."""
    lying = [Size(*map(int, word.split("x"))) for word in _TRAINED.get(sample_size, "").split()]
    standing = [Size(size.height, size.width) for size in reversed(lying)]
    return tuple(dict.fromkeys(lying + standing))


def size_for(aspect: str, sample_size: int) -> Size:
    """The trained size whose ratio is nearest to an aspect such as 16:9, on a log scale.

    Raises:
        InputError: it is no aspect, none is near, or the model's sizes are not known.
    """
    ratio = read_aspect(aspect)
    trained = trained_sizes(sample_size)
    if not trained:
        raise InputError("this model's trained sizes are not known; write size: WIDTHxHEIGHT")
    nearest = min(trained, key=lambda size: _distance(size.ratio, ratio))
    if _distance(nearest.ratio, ratio) > math.log(FURTHEST):
        near = " and ".join(_near_aspects(ratio, sample_size))
        raise InputError(f"no trained size is near aspect {aspect}; the nearest are {near}")
    return nearest


def read_aspect(text: str) -> float:
    """Width over height of 16:9, 16/9 or 1.91:1.

    Raises:
        InputError: it is not two positive numbers around : or /.
    """
    found = re.fullmatch(
        r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*[:/]\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)", text
    )
    if not found or not all(float(number) > 0 for number in found.groups()):
        raise InputError(f"{text!r} is no aspect; write two positive numbers, such as 16:9")
    return float(found[1]) / float(found[2])


def read_size(text: str, sample_size: int) -> Size:
    """The size written as WIDTHxHEIGHT; both are multiples of 8.

    Raises:
        InputError: it is no size, or one that cannot be drawn; names the nearest that can.
    """
    found = re.fullmatch(r"([0-9]{1,6})\s*[xX]\s*([0-9]{1,6})", text)
    if not found:
        raise InputError(f"{text!r} is no size; write width and height, such as 1344x768")
    size = Size(int(found[1]), int(found[2]))
    if not all(SMALLEST <= side <= LARGEST for side in (size.width, size.height)):
        raise InputError(f"size {size} must be {SMALLEST} to {LARGEST} pixels on each side")
    if size.width % 8 or size.height % 8:
        below, above = _multiples_of_8(size)
        near = nearest_trained(size, sample_size)
        raise InputError(
            f"size {size} must be multiples of 8; use {below} or {above}"
            + (f"; trained: {near}" if near else "")
        )
    return size


def nearest_trained(size: Size, sample_size: int) -> Size | None:
    """The trained size of the nearest ratio; None if the model's sizes are not known."""
    trained = trained_sizes(sample_size)
    return min(trained, key=lambda other: _distance(other.ratio, size.ratio), default=None)


def _distance(one: float, other: float) -> float:
    return abs(math.log(one / other))


def _near_aspects(ratio: float, sample_size: int) -> list[str]:
    """The two usual aspects nearest to `ratio` that have a trained size."""
    usual = [*_USUAL_ASPECTS, *(":".join(reversed(text.split(":"))) for text in _USUAL_ASPECTS[1:])]
    ratios = [size.ratio for size in trained_sizes(sample_size)]
    have = [
        text
        for text in usual
        if min(_distance(read_aspect(text), one) for one in ratios) <= math.log(FURTHEST)
    ]
    return sorted(have, key=lambda text: _distance(read_aspect(text), ratio))[:2]


def _multiples_of_8(size: Size) -> tuple[Size, Size]:
    below = Size(size.width // 8 * 8, size.height // 8 * 8)
    return below, Size(-(-size.width // 8) * 8, -(-size.height // 8) * 8)
