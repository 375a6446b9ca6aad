"""One component of a model in diffusers' folder layout: its JSON config and its weights files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from comicgen.errors import InputError
from comicgen.weights.header import Tensor, read_header

Variant = Literal["fp16"]
_PICKLES = {".bin", ".ckpt", ".pt", ".pth", ".pkl"}


@dataclass(frozen=True, slots=True)
class Weights:
    """The safetensors files that hold one component, as many as it has shards.

    `variant` is what diffusers and transformers must be asked for to load these very files.
    """

    files: tuple[Path, ...]
    variant: Variant | None
    tensors: Mapping[str, Tensor]

    @property
    def parameters(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(tensor.parameters for tensor in self.tensors.values())


def read_config(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{file}: is missing; copy the whole model folder again") from error
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror}); mend its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not JSON; copy the file again") from error
    if not isinstance(config, dict):
        raise InputError(f"{file}: is not a JSON object; copy the file again")
    return config


def read_weights(folder: Path, stem: str) -> Weights:
    """Find the weights called `stem` in `folder` and read their headers.

    Plain weights are preferred to the fp16 variant, one file to shards.

    Raises:
        InputError: there are none, only pickles, or a file is broken.
    """
    variants: tuple[Variant | None, ...] = (None, "fp16")
    for variant in variants:
        dotted = f".{variant}" if variant else ""
        whole = folder / f"{stem}{dotted}.safetensors"
        index = folder / f"{stem}.safetensors.index{dotted}.json"
        if whole.is_file():
            return Weights((whole,), variant, read_header(whole).tensors)
        if index.is_file():
            return _read_shards(index, variant)
    raise InputError(_without_weights(folder, stem))


def _read_shards(index: Path, variant: Variant | None) -> Weights:
    homes = read_config(index).get("weight_map")
    if not isinstance(homes, dict) or not all(_is_plain(name) for name in homes.values()):
        raise InputError(f"{index}: does not say which file holds which tensor; copy it again")
    files = tuple(index.parent / name for name in sorted(set(homes.values())))
    headers = {file.name: read_header(file).tensors for file in files}
    if lost := [key for key, name in homes.items() if key not in headers[name]]:
        raise InputError(
            f"{index}: {len(lost)} tensors are not in the file that it names, such as {lost[0]}; "
            "copy the folder again"
        )
    return Weights(files, variant, {key: headers[name][key] for key, name in homes.items()})


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _without_weights(folder: Path, stem: str) -> str:
    if not folder.is_dir():
        return f"{folder}: is missing; copy the whole model folder again"
    if any(file.suffix in _PICKLES for file in folder.iterdir()):
        return (
            f"{folder}: has only pickled weights, which can run code when they are opened; "
            "save the model with safe_serialization=True"
        )
    return f"{folder}: has no {stem}.safetensors; copy the whole model folder again"
