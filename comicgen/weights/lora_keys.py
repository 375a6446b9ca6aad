"""How LoRA files spell their keys, and what the spelling and the shapes tell.

Every key has three parts: the component, the layer's name, and the role of the tensor. kohya's
trainer writes `lora_unet_down_blocks_0_attn.lora_down.weight`, PEFT and diffusers
`unet.down_blocks.0.attn.lora_A.weight`. With every dot of the layer's name turned into an
underscore the two agree.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from comicgen.weights.header import Tensor

Family = Literal["kohya", "PEFT", "diffusers"]
Role = Literal["down", "up", "alpha"]

_KOHYA = {
    "lora_unet_": "unet",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    "lora_te_": "text_encoder",
}
_DOTTED = ("text_encoder_2", "text_encoder", "unet")
_WRAPPER = "base_model.model."
_ENDINGS: dict[str, tuple[Family, Role]] = {
    ".lora_down.weight": ("kohya", "down"),
    ".lora_up.weight": ("kohya", "up"),
    ".lora_A.weight": ("PEFT", "down"),
    ".lora_B.weight": ("PEFT", "up"),
    ".lora.down.weight": ("diffusers", "down"),
    ".lora.up.weight": ("diffusers", "up"),
    ".lora_linear_layer.down.weight": ("diffusers", "down"),
    ".lora_linear_layer.up.weight": ("diffusers", "up"),
    "_lora.down.weight": ("diffusers", "down"),
    "_lora.up.weight": ("diffusers", "up"),
}
_SGM = "a LoRA in the block naming of SDXL's first release (SGM)"
_REFUSED = {
    r"\bhada_": "LoHa",
    r"\blokr_": "LoKr",
    r"\b(dora_scale|lora_magnitude_vector)\b": "DoRA",
    r"\blora_mid\b": "LoCon with a middle tensor (Tucker decomposition)",
    r"\boft_": "OFT",
    r"^(lora_unet_|unet\.|diffusion_model\.)(input_blocks|middle_block|output_blocks)": _SGM,
    r"^lora_unet_(time_embed_\d|label_emb|out_\d)": _SGM,
}
_OTHER_MODELS = {
    r"(double|single)_blocks|single_transformer_blocks": "Flux",
    r"joint_blocks|^transformer\.|^lora_transformer_": "a transformer model",
}
_WIDTHS = {768: "SD 1", 1024: "SD 2", 1280: "the SDXL refiner", 2048: "SDXL"}


@dataclass(frozen=True, slots=True)
class Spelling:
    """A key taken apart; `layer` has underscores instead of dots, and no `text_model_`."""

    component: str
    layer: str
    role: Role
    family: Family


@dataclass(frozen=True, slots=True)
class Base:
    """The model a file was made for: its name where it is known, and its cross-attention width."""

    name: str | None
    width: int | None

    def __str__(self) -> str:
        width = f"cross attention {self.width} wide" if self.width else ""
        return f"{self.name} ({width})" if self.name and width else self.name or width or "unknown"


def spell(key: str) -> Spelling | None:
    """Take a key apart, or None where it is none of a LoRA's."""
    kohya = key.startswith(tuple(_KOHYA))
    for ending, (family, role) in _ENDINGS.items():
        if key.endswith(ending):
            return _spelling(key.removesuffix(ending), role, family)
    if key.endswith(".alpha"):
        return _spelling(key.removesuffix(".alpha"), "alpha", "kohya" if kohya else "PEFT")
    return None


def _spelling(path: str, role: Role, family: Family) -> Spelling:
    component, layer = _component(path)
    layer = layer.replace(".processor.", ".").replace(".", "_").removeprefix("text_model_")
    return Spelling(component, layer, role, family)


def _component(path: str) -> tuple[str, str]:
    for prefix, component in _KOHYA.items():
        if path.startswith(prefix):
            return component, path.removeprefix(prefix)
    path = path.removeprefix(_WRAPPER)
    for component in _DOTTED:
        if path.startswith(f"{component}."):
            return component, path.removeprefix(f"{component}.").removeprefix(_WRAPPER)
    return "unet", path


def layer_names(parameter: str) -> tuple[str, ...]:
    """Every underscored name that files give to the layer of a parameter `….weight`.

    The first diffusers versions called attention projections by the UNet's short names, in text
    encoders too, and left out the index of `to_out`.
    """
    name = parameter.removesuffix(".weight").replace(".", "_")
    short = re.sub(r"(.*_attn)_(?:(q|k|v)_proj|(out)_proj)$", r"\1_to_\2\3", name)
    return tuple(dict.fromkeys((name, short, re.sub(r"_to_out_0$", "_to_out", name))))


def refused_kind(keys: Iterable[str]) -> str | None:
    """The name of a kind of file that adds to weights otherwise than up @ down, if it is one."""
    keys = tuple(keys)
    for pattern, kind in _REFUSED.items():
        if any(re.search(pattern, key) for key in keys):
            return kind
    return None


def base_of(tensors: Mapping[str, Tensor]) -> Base:
    """What model a LoRA or checkpoint belongs to, told by names and shapes alone."""
    for pattern, name in _OTHER_MODELS.items():
        if any(re.search(pattern, key) for key in tensors):
            return Base(name, None)
    for key, tensor in tensors.items():
        if re.search(r"attn2[._](processor[._])?to_k", key) and _reads_input(key, tensor):
            return Base(_WIDTHS.get(tensor.shape[1]), tensor.shape[1])
    return Base(None, None)


def _reads_input(key: str, tensor: Tensor) -> bool:
    spelling = spell(key)
    return len(tensor.shape) >= 2 and (spelling is None or spelling.role == "down")
