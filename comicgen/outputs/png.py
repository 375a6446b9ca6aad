"""PNG files made of stripes that are compressed side by side.

W3C, "Portable Network Graphics (Third Edition)": the lines of a picture are filtered, then
deflated into one stream (RFC 1950, 1951). Deflate can end on a whole byte without ending the
stream, so that each stripe of lines can be deflated for itself, in a thread of its own.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

LINES = 64
"""In a stripe, whatever the machine, so that a file depends on its picture alone."""

LEVEL = 4
"""zlib's. By its own choice, 6, files are a twentieth smaller and take twice as long."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PAETH = 4


@dataclass(frozen=True, slots=True)
class Stripe:
    """Lines of a picture as its file has them, and deflated."""

    lines: bytes
    deflated: bytes


@dataclass(frozen=True, slots=True)
class Encoding:
    """Pixels (H, W, 3) on their way to a PNG file with these texts.

    Its stripes may be deflated in any order, by as many threads as like.
    """

    pixels: "np.ndarray[Any, np.dtype[np.uint8]]"
    text: PngInfo

    @classmethod
    def of(cls, image: Image.Image, text: PngInfo) -> Self:
        """Of an RGB picture."""
        assert image.mode == "RGB", image.mode
        return cls(np.asarray(image), text)

    @property
    def stripes(self) -> range:
        """The line at which each begins."""
        return range(0, len(self.pixels), LINES)

    def deflate(self, first: int) -> Stripe:
        """The stripe that begins at this line."""
        height = len(self.pixels)
        last = min(first + LINES, height)
        lines = _filtered(self.pixels[max(first - 1, 0) : last], first == 0)
        compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        ending = zlib.Z_FINISH if last == height else zlib.Z_SYNC_FLUSH
        return Stripe(lines, compressor.compress(lines) + compressor.flush(ending))

    def join(self, made: Iterable[Stripe]) -> bytes:
        """The file from all stripes, in order."""
        checksum, deflated = zlib.adler32(b""), []
        for stripe in made:
            checksum = zlib.adler32(stripe.lines, checksum)
            deflated.append(stripe.deflated)
        height, width = self.pixels.shape[:2]
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = [
            (b"IHDR", header),
            *((kind, content) for kind, content, *_ in self.text.chunks),
            (b"IDAT", b"".join([b"\x78\x5e", *deflated, struct.pack(">I", checksum)])),
            (b"IEND", b""),
        ]
        return _SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)

    def whole(self) -> bytes:
        """The file, made in this thread."""
        return self.join(map(self.deflate, self.stripes))


def _filtered(pixels: "np.ndarray[Any, np.dtype[np.uint8]]", top: bool) -> bytes:
    """Lines (n, W, 3) without the first, which is only looked at, unless it is the `top`.

    Paeth's filter takes from each number the nearest to left + above - upper left among them.
    """
    wide = pixels.astype(np.int16)
    if top:
        wide = np.concatenate([np.zeros_like(wide[:1]), wide])
    count, width, colours = wide.shape
    padded = np.zeros((count, (width + 1) * colours), np.int16)
    padded[:, colours:] = wide.reshape(count, -1)
    own, above = padded[1:, colours:], padded[:-1, colours:]
    left, corner = padded[1:, :-colours], padded[:-1, :-colours]
    to_left, to_above = above - corner, left - corner  # from left + above - corner
    to_corner = np.abs(to_left + to_above)
    np.abs(to_left, out=to_left)
    np.abs(to_above, out=to_above)
    nearest = np.where(to_above <= to_corner, above, corner)
    np.copyto(nearest, left, where=(to_left <= to_above) & (to_left <= to_corner))
    lines = np.empty((count - 1, 1 + width * colours), np.uint8)
    lines[:, 0] = _PAETH
    np.subtract(own, nearest, out=lines[:, 1:], casting="unsafe")
    return lines.tobytes()


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
