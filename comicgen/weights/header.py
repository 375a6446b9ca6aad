"""The header of a safetensors file: names, shapes and metadata, without reading a tensor.

The layout is that of https://huggingface.co/docs/safetensors: eight bytes, little-endian, give the
length of a JSON object; the bytes of the tensors follow it without holes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from comicgen.errors import InputError

_LENGTH = 8
_LONGEST = 100_000_000
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file; `dtype` in safetensors' words, such as F16 or BF16."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of itself."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_header(file: Path) -> Header:
    """Read the header of `file` and check that the tensors lie where it says.

    Raises:
        InputError: the file cannot be read, is no safetensors file, or its header does not
            describe the bytes that follow it.
    """
    try:
        with file.open("rb") as stream:
            first = stream.read(_LENGTH)
            length = int.from_bytes(first, "little")
            size = file.stat().st_size - _LENGTH - length
            if len(first) < _LENGTH or length > _LONGEST or size < 0:
                raise _broken(file, "it is no safetensors file, or it was cut short")
            text = stream.read(length)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror}); mend its permissions"
        ) from error
    return _parse(file, text, size)


def _parse(file: Path, text: bytes, size: int) -> Header:
    try:
        entries = json.loads(text, object_pairs_hook=_distinct)
        metadata = entries.pop("__metadata__", {})
        spans = sorted((_span(entry), name) for name, entry in entries.items())
        tensors = {name: _tensor(entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _broken(file, "its header is not that of a safetensors file") from error
    if not (
        isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    ):
        raise _broken(file, "its metadata are not plain text")
    _check_spans(file, spans, tensors, size)
    return Header(tensors, metadata)


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    shape = tuple(entry["shape"])
    if not all(type(edge) is int and edge >= 0 for edge in shape):
        raise ValueError(shape)
    if entry["dtype"] not in _BITS:
        raise ValueError(entry["dtype"])
    return Tensor(shape, entry["dtype"])


def _span(entry: Mapping[str, Any]) -> tuple[int, int]:
    start, end = entry["data_offsets"]
    if not type(start) is type(end) is int:
        raise ValueError(entry)
    return start, end


def _check_spans(
    file: Path,
    spans: Iterable[tuple[tuple[int, int], str]],
    tensors: Mapping[str, Tensor],
    size: int,
) -> None:
    """The tensors follow each other without overlap or hole and end where the file ends."""
    at = 0
    for (start, end), name in spans:
        need = tensors[name].parameters * _BITS[tensors[name].dtype] // 8
        if start != at or end - start != need:
            raise _broken(file, f"its header lies about where {name} is")
        at = end
    if at > size:
        raise _broken(file, f"it was cut short: {at - size} bytes are missing")
    if at < size:
        raise _broken(file, f"{size - at} bytes at its end belong to no tensor")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key stands twice")
    return entries


def _broken(file: Path, reason: str) -> InputError:
    return InputError(f"{file}: {reason}; copy or download it again")
