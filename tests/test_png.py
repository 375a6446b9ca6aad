"""A PNG made of stripes is the picture, whole, in every reader, and the same from any threads."""

import io
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comicgen.outputs.png import LINES, Encoding


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth, noisy and flat by turns."""
    random = np.random.default_rng(seed)
    across = np.linspace(0, 255, width)[None, :, None] * np.ones((height, 1, 3))
    noise = random.integers(0, 256, (height, width, 3))
    pixels = np.where(np.arange(height)[:, None, None] % 3 == 0, noise, across)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, text: PngInfo | None = None) -> bytes:
    return Encoding.of(image, text or PngInfo()).whole()


@pytest.mark.parametrize("height", [1, 2, LINES - 1, LINES, LINES + 1, 3 * LINES])
@pytest.mark.parametrize("width", [1, 3, 200])
def test_it_is_the_picture(width: int, height: int) -> None:
    image = picture(width, height)

    with Image.open(io.BytesIO(encoded(image))) as read:
        assert (read.format, read.mode, read.size) == ("PNG", "RGB", image.size)
        assert np.array_equal(np.asarray(read), np.asarray(image))


@pytest.mark.parametrize("level", [0, 255])
def test_a_flat_picture_is_small(level: int) -> None:
    image = Image.new("RGB", (1024, 1024), (level, level, level))

    assert len(encoded(image)) < 10_000


def test_its_stream_is_one_that_ends_where_it_says() -> None:
    """With the checksum of all lines, so that a strict reader takes it too."""
    data = encoded(picture(50, 150))
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start], "big")
    stream = zlib.decompressobj()
    lines = stream.decompress(data[start + 4 : start + 4 + length])

    assert (stream.eof, stream.unused_data) == (True, b"")
    assert len(lines) == 150 * (1 + 3 * 50)


def test_every_chunk_has_its_checksum() -> None:
    data, at, kinds = encoded(picture(20, 20)), 8, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        body = data[at + 4 : at + 8 + length]
        kinds.append(body[:4])
        assert zlib.crc32(body) == int.from_bytes(data[at + 8 + length : at + 12 + length], "big")
        at += 12 + length

    assert kinds == [b"IHDR", b"IDAT", b"IEND"]


def test_texts_are_in_it() -> None:
    text = PngInfo()
    text.add_text("parameters", "a fox; Schriftzug: größer")
    text.add_text("comicgen", "漫剧")

    with Image.open(io.BytesIO(encoded(picture(9, 9), text))) as read:
        assert read.text == {"parameters": "a fox; Schriftzug: größer", "comicgen": "漫剧"}


def test_threads_in_any_order_make_the_same_file() -> None:
    encoding = Encoding.of(picture(300, 500), PngInfo())
    with ThreadPoolExecutor(4) as pool:
        backwards = list(pool.map(encoding.deflate, reversed(encoding.stripes)))

    assert encoding.join(backwards[::-1]) == encoding.whole()


@pytest.mark.parametrize("mode", ["RGBA", "L", "CMYK"])
def test_a_picture_that_is_not_rgb_is_an_engines_mistake(mode: str) -> None:
    with pytest.raises(AssertionError, match=mode):
        Encoding.of(Image.new(mode, (8, 8)), PngInfo())
