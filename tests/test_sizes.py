"""Aspects get the trained sizes that the field uses, and sizes that cannot be drawn are refused."""

import math

import pytest

from comicgen.errors import InputError
from comicgen.sizes import Size, read_aspect, read_size, size_for, trained_sizes

SDXL, POCKET = 128, 32


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        ("1:1", "1024x1024"),
        ("4:3", "1152x896"),
        ("3:2", "1216x832"),
        ("16:9", "1344x768"),
        ("21:9", "1536x640"),
        ("3:4", "896x1152"),
        ("2:3", "832x1216"),
        ("9:16", "768x1344"),
        ("9:21", "640x1536"),
        ("1.91:1", "1344x704"),
        ("4:1", "2048x512"),
    ],
)
def test_an_aspect_gets_the_size_that_sdxl_users_know(aspect: str, size: str) -> None:
    assert size == str(size_for(aspect, SDXL))


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        ("1:1", "256x256"),
        ("16:9", "320x192"),
        ("3:2", "384x256"),
        ("4:3", "384x256"),
        ("3:4", "256x384"),
        ("9:16", "192x320"),
    ],
)
def test_the_embedded_model_has_five_sizes(aspect: str, size: str) -> None:
    assert size == str(size_for(aspect, POCKET))


def test_sdxl_has_the_41_sizes_of_its_paper_in_steps_of_64() -> None:
    sizes = trained_sizes(SDXL)

    assert len(set(sizes)) == len(sizes) == 41
    assert all(side % 64 == 0 for size in sizes for side in (size.width, size.height))
    assert all(0.85 < size.width * size.height / 1024**2 < 1.02 for size in sizes)
    assert {Size(size.height, size.width) for size in sizes} == set(sizes)


def test_an_aspect_gets_the_nearest_ratio_on_a_log_scale() -> None:
    for aspect in ("5:4", "7:5", "2:1", "2.39:1", "1:3", "5:7"):
        ratio = read_aspect(aspect)
        distances = [abs(math.log(size.ratio / ratio)) for size in trained_sizes(SDXL)]

        assert min(distances) == abs(math.log(size_for(aspect, SDXL).ratio / ratio))


def test_aspects_may_have_a_slash_or_decimals() -> None:
    assert 16 / 9 == read_aspect("16:9") == read_aspect("16/9")
    assert read_aspect("1.91:1") == 1.91


@pytest.mark.parametrize(
    "text", ["", "16", "16:0", "0:1", "-4:3", "a:b", "1:2:3", "nan:1", "1e3:1"]
)
def test_what_is_no_aspect_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no aspect"):
        read_aspect(text)


def test_an_aspect_far_from_the_trained_ones_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"aspect 21:9; the nearest are 16:9 and 3:2$"):
        size_for("21:9", POCKET)
    with pytest.raises(InputError, match=r"aspect 1:5; the nearest are 1:4 and 1:3$"):
        size_for("1:5", SDXL)


def test_a_model_of_unknown_sizes_needs_a_written_size() -> None:
    assert trained_sizes(64) == ()
    with pytest.raises(InputError, match="write size"):
        size_for("1:1", 64)


def test_a_size_off_the_grid_is_refused_with_both_neighbours_and_the_trained_size() -> None:
    with pytest.raises(InputError, match=r"use 1000x560 or 1000x568; trained: 1344x768$"):
        read_size("1000x563", SDXL)
    with pytest.raises(InputError, match=r"use 1000x560 or 1000x568$"):
        read_size("1000x563", 64)


@pytest.mark.parametrize("text", ["56x512", "512x4104", "0x0"])
def test_a_size_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="64 to 4096"):
        read_size(text, SDXL)


def test_sizes_are_read_in_the_usual_spellings() -> None:
    assert Size(1344, 768) == read_size("1344x768", SDXL) == read_size("1344 X 768", 64)
    with pytest.raises(InputError, match="no size"):
        read_size("1344", SDXL)
