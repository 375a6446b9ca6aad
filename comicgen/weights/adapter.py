"""The scale of PEFT adapters, which diffusers writes into the metadata of a LoRA file.

`lora_adapter_metadata` is a JSON object with the fields of a peft.LoraConfig, each under the name
of its component: `unet.r`, `unet.lora_alpha`, `unet.alpha_pattern`, and so on.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from comicgen.errors import InputError
from comicgen.weights.folder import read_config
from comicgen.weights.header import Header

_KEY = "lora_adapter_metadata"
# peft.LoraConfig has these where a field is absent.
_RANK = _ALPHA = 8


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter metadata of `file`; empty where there are none."""

    file: Path
    fields: Mapping[str, Any]

    def scale(self, component: str, parameter: str, rank: int) -> float:
        """alpha / rank of one layer, alpha / sqrt(rank) if rank-stabilised; 1 without metadata.

        Raises:
            InputError: the metadata speak of another rank, or cannot be understood.
        """
        prefix = f"{component}."
        fields = {
            key.removeprefix(prefix): value
            for key, value in self.fields.items()
            if key.startswith(prefix)
        }
        if not fields:
            return 1.0
        layer = parameter.removesuffix(".weight")
        said = self._of_layer(fields.get("rank_pattern"), layer, fields.get("r", _RANK))
        alpha = self._of_layer(fields.get("alpha_pattern"), layer, fields.get("lora_alpha", _ALPHA))
        if said != rank:
            raise self._odd(f"gives {component}.{layer} rank {said}, but its tensors have {rank}")
        return alpha / (sqrt(rank) if fields.get("use_rslora") else rank)

    def _of_layer(self, pattern: object, layer: str, otherwise: object) -> float:
        """The number of the first name that is the layer's or ends it, as peft chooses."""
        if not isinstance(pattern, dict | None):
            raise self._odd("has a pattern that is no JSON object")
        numbers = (number for name, number in (pattern or {}).items() if self._ends(layer, name))
        number = next(numbers, otherwise)
        if not isinstance(number, int | float) or not abs(number) < 1e9:
            raise self._odd(f"has {number!r} where a number belongs")
        return number

    def _ends(self, layer: str, name: str) -> bool:
        plain = name.removeprefix("^").replace(r"\.", ".")
        if not re.fullmatch(r"[\w.]+", plain):
            raise self._odd(f"chooses layers by the expression {name!r}, which is not supported")
        wanted = f".{plain.removeprefix('text_model.')}"
        return f".{layer}" == wanted if name.startswith("^") else f".{layer}".endswith(wanted)

    def _odd(self, what: str) -> InputError:
        return InputError(f"{self.file}: its {_KEY} {what}; save the LoRA again")


def read_adapter(file: Path, header: Header) -> Adapter:
    """Read the adapter metadata of a LoRA file.

    Raises:
        InputError: they are no JSON object, speak of DoRA, or stand in another file.
    """
    try:
        fields = json.loads(header.metadata.get(_KEY) or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: its {_KEY} is not JSON; save the LoRA again") from error
    if not isinstance(fields, dict):
        raise InputError(f"{file}: its {_KEY} is no JSON object; save the LoRA again")
    if any(key.endswith("use_dora") and value for key, value in fields.items()):
        raise InputError(f"{file}: is DoRA, which is not supported; use a plain LoRA")
    if not fields:
        _check_neighbour(file)
    return Adapter(file, fields)


def _check_neighbour(file: Path) -> None:
    """PEFT itself writes alpha into a second file, which no digest of the LoRA would cover."""
    neighbour = file.with_name("adapter_config.json")
    if file.name != "adapter_model.safetensors" or not neighbour.is_file():
        return
    config = read_config(neighbour)
    if config.get("use_dora") or config.get("lora_alpha", _ALPHA) != config.get("r", _RANK):
        raise InputError(
            f"{file}: its strength stands in {neighbour.name}, which is not read; save the LoRA "
            "with save_lora_weights of diffusers, which puts it into the file"
        )
