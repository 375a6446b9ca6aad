"""Images that the author brings, read in one way wherever they are looked at; without torch."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from comicgen.errors import CandidateError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow's decoders raise on broken files.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    IndexError,
    EOFError,
    NotImplementedError,
    struct.error,
    zlib.error,
)


def read_rgb(file: Path) -> "Image":
    """An image in RGB with 8 bits, turned upright as its EXIF says; 16-bit greys are scaled.

    The errors say what is wrong with it, and leave its name to those who know how it is written.

    Raises:
        CandidateError: its pixels cannot be decoded.
        InputError: they can, but what they mean is not known: transparent, or of 32 bits.
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(file) as opened:
                opened.load()
                image = ImageOps.exif_transpose(opened)
        except (*_BROKEN, Image.DecompressionBombError) as error:
            raise CandidateError(f"cannot be decoded ({error}); save it again") from error
    return _as_rgb(image)


def _as_rgb(image: "Image") -> "Image":
    import numpy as np
    from PIL import Image

    if image.mode in ("I", "F"):
        raise InputError("has pixels of 32 bits and unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):
        # Left to itself, Pillow makes everything above 255 white.
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] != 255:
        raise InputError("is partly transparent; flatten it onto black or white")
    return image.convert("RGB")
