"""Whether two arms draw the same picture."""

import numpy as np
from PIL import Image


def difference(one: Image.Image, other: Image.Image) -> float:
    """How far apart two pictures of one size are on average, in levels of 255."""
    gap = np.abs(np.asarray(one, np.float32) - np.asarray(other, np.float32))
    return float(gap.mean())
