"""Writers of small random LoRA files for tests, in the spellings that trainers use."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from comicgen.storyboard import Lora
from comicgen.weights import ModelFolder

COMPONENTS = ("unet", "text_encoder", "text_encoder_2")
_KOHYA = {"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}
_TARGETS = {
    "unet": r"\.(to_[qkv]|to_out\.0|proj_in|proj_out|ff\.net\.\d\.?\w*|conv\d?|conv_shortcut)$",
    "text_encoder": r"\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)$",
    "text_encoder_2": r"\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)$",
}


@dataclass(frozen=True)
class Recipe:
    """A random LoRA over attention, feed-forward and convolution layers.

    Without alpha the scale is 1. The change of a weight that reads n numbers has a standard
    deviation of scale * strength / sqrt(n).
    """

    rank: int = 4
    alpha: float | None = None
    components: tuple[str, ...] = COMPONENTS
    seed: int = 0
    strength: float = 0.3
    dtype: type = np.float32


@dataclass(frozen=True)
class Factors:
    """up @ down for one layer; `layer` is its dotted normalised name."""

    component: str
    layer: str
    down: np.ndarray
    up: np.ndarray

    @property
    def delta(self) -> np.ndarray:
        """The change at scale 1, as a matrix (out, in * kernel) in float32."""
        rank = self.down.shape[0]
        up = self.up.reshape(-1, rank).astype(np.float32)
        return up @ self.down.reshape(rank, -1).astype(np.float32)


def factors(model: ModelFolder, recipe: Recipe) -> Iterator[Factors]:
    """The factors that both writers put into their files."""
    random = np.random.default_rng(recipe.seed)
    for component in recipe.components:
        for parameter, shape in sorted(model.layers[component].items()):
            layer = parameter.removesuffix(".weight")
            if parameter.endswith(".weight") and re.search(_TARGETS[component], layer):
                yield _random(random, component, layer, shape, recipe)


def _random(
    random: np.random.Generator,
    component: str,
    layer: str,
    shape: tuple[int, ...],
    recipe: Recipe,
) -> Factors:
    ones = (1,) * (len(shape) - 2)
    down = random.standard_normal((recipe.rank, *shape[1:])) / np.sqrt(prod(shape[1:]))
    up = random.standard_normal((shape[0], recipe.rank, *ones)) / np.sqrt(recipe.rank)
    up *= recipe.strength
    return Factors(component, layer, down.astype(recipe.dtype), up.astype(recipe.dtype))


def lora_at(file: Path, weight: float = 1.0) -> Lora:
    """A LoRA file as a storyboard holds it."""
    return Lora(file.name, file, hashlib.sha256(file.read_bytes()).hexdigest(), weight)


def write_kohya(file: Path, model: ModelFolder, recipe: Recipe | None = None) -> Path:
    """Write kohya's form with diffusers' block names; alpha as a tensor beside each layer."""
    recipe = recipe or Recipe()
    tensors = {}
    for it in factors(model, recipe):
        inner = it.layer if it.component == "unet" else f"text_model.{it.layer}"
        name = f"{_KOHYA[it.component]}_{inner.replace('.', '_')}"
        tensors[f"{name}.lora_down.weight"] = it.down
        tensors[f"{name}.lora_up.weight"] = it.up
        if recipe.alpha is not None:
            tensors[f"{name}.alpha"] = np.array(recipe.alpha, dtype=recipe.dtype)
    return _save(file, tensors, {})


def write_peft(file: Path, model: ModelFolder, recipe: Recipe | None = None) -> Path:
    """Write diffusers' form; alpha as adapter metadata, as its training scripts save it."""
    recipe = recipe or Recipe()
    tensors = {}
    targets: dict[str, list[str]] = {}
    for it in factors(model, recipe):
        inner = it.layer if it.component == "unet" else f"text_model.{it.layer}"
        tensors[f"{it.component}.{inner}.lora_A.weight"] = it.down
        tensors[f"{it.component}.{inner}.lora_B.weight"] = it.up
        targets.setdefault(it.component, []).append(it.layer)
    metadata = {}
    if recipe.alpha is not None:
        metadata["lora_adapter_metadata"] = json.dumps(_adapter(recipe, targets), sort_keys=True)
    return _save(file, tensors, metadata)


def _adapter(recipe: Recipe, targets: Mapping[str, list[str]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for component, layers in targets.items():
        fields[f"{component}.r"] = recipe.rank
        fields[f"{component}.lora_alpha"] = recipe.alpha
        fields[f"{component}.target_modules"] = layers
    return fields


def _save(file: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), file, metadata={"format": "pt", **metadata})
    return file
