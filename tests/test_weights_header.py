"""A safetensors header is believed only as far as the file bears it out."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from comicgen.errors import InputError
from comicgen.weights import Tensor, read_header


def _write(file: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


def _entry(start: int, end: float, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_names_shapes_and_metadata_are_what_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {"x": np.zeros((2, 3), np.float16), "y": np.zeros((), np.float32)}
    save_file(tensors, file, metadata={"by": "us"})

    header = read_header(file)

    assert header.tensors == {"x": Tensor((2, 3), "F16"), "y": Tensor((), "F32")}
    assert header.metadata == {"by": "us"}


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        ({"x": _entry(0, 8, [2])}, b"1234", "cut short: 4 bytes are missing"),
        ({"x": _entry(0, 4, [1])}, b"12345678", "4 bytes at its end belong to no tensor"),
        ({"x": _entry(0, 4, [2])}, b"1234", "lies about where x is"),
        ({"x": _entry(0, 8, [2]), "y": _entry(4, 8, [1])}, b"12345678", "where y is"),
        ({"x": _entry(4, 8, [1])}, b"12345678", "where x is"),
        ({"x": _entry(0, 4, [-1])}, b"1234", "not that of a safetensors file"),
        ({"x": _entry(0, 4, [1], "Q4")}, b"1234", "not that of a safetensors file"),
        ({"x": {"dtype": "F32", "shape": [1]}}, b"1234", "not that of a safetensors file"),
        ({"x": _entry(0, float("inf"), [1])}, b"1234", "not that of a safetensors file"),
        ({"x": 1}, b"", "not that of a safetensors file"),
        ([], b"", "not that of a safetensors file"),
        (b"{", b"", "not that of a safetensors file"),
        (b'{"x": 1, "x": 2}', b"", "not that of a safetensors file"),
        (b"[" * 100_000, b"", "not that of a safetensors file"),
        ({"__metadata__": {"a": 1}}, b"", "metadata are not plain text"),
    ],
)
def test_a_header_that_lies_is_refused_by_name(
    tmp_path: Path, header: object, data: bytes, why: str
) -> None:
    file = _write(tmp_path / "bad.safetensors", header, data)

    with pytest.raises(InputError, match=rf"bad\.safetensors: .*{why}.*; copy or download"):
        read_header(file)


def test_a_length_beyond_the_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    for length in (1_000, 2**63):
        file = _write(tmp_path / "long.safetensors", {}, length=length)

        with pytest.raises(InputError, match="cut short"):
            read_header(file)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(InputError, match=path.name):
            read_header(path)


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_no_damage_raises_anything_but_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, bit: int
) -> None:
    file = tmp_path_factory.mktemp("damage") / "a.safetensors"
    save_file({"x": np.ones((3, 4), np.float32), "y": np.ones(5, np.float16)}, file)
    raw = bytearray(file.read_bytes())
    raw[flip % len(raw)] ^= 1 << bit
    file.write_bytes(raw[: len(raw) - cut % len(raw)])

    try:
        count = len(read_header(file).tensors)
    except InputError:
        count = 2

    assert count == 2
