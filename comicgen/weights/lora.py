"""A LoRA file compared with the model it is to change, from its header alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from comicgen.errors import InputError
from comicgen.weights.adapter import Adapter, read_adapter
from comicgen.weights.header import Header, Tensor, read_header
from comicgen.weights.lora_keys import Role, base_of, layer_names, refused_kind, spell
from comicgen.weights.model import ModelFolder

Home = tuple[str, str]
"""A component and the normalised name of one of its parameters."""


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """One changed weight: W + weight * scale * up @ down, for Linear and Conv2d.

    `parameter` is the normalised name in `component`; `down` has shape (rank, in, ...), `up`
    (out, rank, ...). Where `alpha` names a tensor of the file, the scale is alpha / rank, else
    `scale`, which comes from diffusers' adapter metadata or is 1.
    """

    component: str
    parameter: str
    down: str
    up: str
    alpha: str | None
    rank: int
    scale: float

    @property
    def home(self) -> Home:
        return self.component, self.parameter


@dataclass(frozen=True, slots=True)
class LoraFile:
    """A LoRA of which every tensor has found its layer in the model."""

    layers: tuple[LoraLayer, ...]


def read_lora(file: Path, model: ModelFolder) -> LoraFile:
    """Read which layers of `model` a LoRA file changes.

    Raises:
        InputError: the file is broken, of a kind that is not supported, made for another model,
            or holds a tensor that has no layer there.
    """
    header = read_header(file)
    _check_kind(file, header.tensors, model)
    parts = _sort(file, header.tensors, model)
    adapter = read_adapter(file, header)
    layers = tuple(_layer(file, header, adapter, home, parts[home]) for home in sorted(parts))
    _check_shapes(file, header, layers, model)
    return LoraFile(layers)


def _check_kind(file: Path, tensors: Mapping[str, Tensor], model: ModelFolder) -> None:
    if kind := refused_kind(tensors):
        raise InputError(f"{file}: is {kind}, which is not supported; use a plain LoRA")
    if not any(spell(key) for key in tensors):
        raise InputError(f"{file}: is no LoRA; name a LoRA file")
    base = base_of(tensors)
    foreign = base.width != model.cross_attention_width if base.width else base.name is not None
    if foreign:
        raise InputError(
            f"{file}: was made for {base}, but the cross attention of {model.folder} is "
            f"{model.cross_attention_width} wide; use a LoRA made for this model"
        )


def _sort(
    file: Path, tensors: Mapping[str, Tensor], model: ModelFolder
) -> dict[Home, dict[Role, str]]:
    """The keys of each changed parameter, by role."""
    homes = _homes(model)
    parts: dict[Home, dict[Role, str]] = {}
    strays = []
    for key in tensors:
        spelling = spell(key)
        home = homes.get((spelling.component, spelling.layer)) if spelling else None
        if spelling is None or home is None:
            strays.append(key)
        elif (first := parts.setdefault(home, {}).setdefault(spelling.role, key)) != key:
            raise InputError(
                f"{file}: {first} and {key} are both for {home[1]} of the {home[0]}; "
                "download the file again, or use another"
            )
    if strays:
        raise InputError(
            f"{file}: {_some(strays, len(tensors))} find no layer in {model.folder}; "
            "use a LoRA made for this model"
        )
    return parts


def _homes(model: ModelFolder) -> dict[tuple[str, str], Home]:
    return {
        (component, name): (component, parameter)
        for component, layers in model.layers.items()
        for parameter, shape in layers.items()
        if parameter.endswith(".weight") and len(shape) >= 2
        for name in layer_names(parameter)
    }


def _some(keys: list[str], total: int) -> str:
    return f"{len(keys)} of {total} tensors (such as {', '.join(keys[:3])})"


def _layer(
    file: Path, header: Header, adapter: Adapter, home: Home, keys: Mapping[Role, str]
) -> LoraLayer:
    if "down" not in keys or "up" not in keys:
        raise InputError(
            f"{file}: {next(iter(keys.values()))} is incomplete without its other half; "
            "copy or download the file again"
        )
    down = header.tensors[keys["down"]]
    rank = down.shape[0] if down.shape else 0
    scale = adapter.scale(*home, rank) if rank else 1.0
    return LoraLayer(*home, keys["down"], keys["up"], keys.get("alpha"), rank, scale)


def _check_shapes(
    file: Path, header: Header, layers: Iterable[LoraLayer], model: ModelFolder
) -> None:
    for layer in layers:
        down, up = header.tensors[layer.down], header.tensors[layer.up]
        weight = model.layers[layer.component][layer.parameter]
        if not _fits(down.shape, up.shape, weight):
            raise InputError(
                f"{file}: {layer.down} {list(down.shape)} and {layer.up} {list(up.shape)} do not "
                f"make up a weight of {list(weight)} in the {layer.component} of {model.folder}; "
                "use a LoRA made for this model"
            )
        for key in (layer.down, layer.up):
            if not header.tensors[key].dtype.startswith(("F", "BF")):
                raise InputError(
                    f"{file}: {key} holds {header.tensors[key].dtype}, no fractions; "
                    "use another file"
                )
        if layer.alpha and not _is_number(header.tensors[layer.alpha]):
            raise InputError(f"{file}: {layer.alpha} is not one number; use another file")


def _is_number(tensor: Tensor) -> bool:
    """Whether it is one, real: alphas are saved as integers too."""
    return tensor.parameters == 1 and tensor.dtype.startswith(("F", "BF", "I", "U"))


def _fits(down: tuple[int, ...], up: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    return (
        min(len(down), len(up)) >= 2
        and down[0] == up[1] > 0
        and up[0] == weight[0]
        and prod(up[2:]) == 1
        and _without_ones(down) == _without_ones(weight)
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a filter reads: in-channels and, unless it is 1x1, its kernel."""
    return shape[1:2] if prod(shape[2:]) == 1 else shape[1:]
