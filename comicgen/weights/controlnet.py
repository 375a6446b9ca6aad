"""A ControlNet in diffusers' folder layout, and whether it fits a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comicgen.errors import InputError
from comicgen.weights.folder import Weights, read_config, read_weights
from comicgen.weights.model import ModelFolder

KIND = "ControlNetModel"


@dataclass(frozen=True, slots=True)
class ControlNetFolder:
    """A ControlNet that fits the model it was read for."""

    folder: Path
    weights: Weights

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the ControlNet is made of."""
        return (self.folder / "config.json", *self.weights.files)


def read_controlnet(folder: Path, model: ModelFolder) -> ControlNetFolder:
    """Read a ControlNet's config and headers and compare it with `model`.

    Raises:
        InputError: it is no ControlNet, was made for another model, or is broken.
    """
    config = read_config(folder / "config.json")
    if (kind := config.get("_class_name")) != KIND:
        raise InputError(f"{folder}: is a {kind}; a ControlNet here is a {KIND}")
    if config.get("global_pool_conditions"):
        raise InputError(
            f"{folder}: pools its control image, which comicgen cannot draw with; use another"
        )
    if (channels := config.get("conditioning_channels", 3)) != 3:
        raise InputError(
            f"{folder}: takes control images of {channels} channels instead of 3; use another"
        )
    for key in _shared(config):
        if config.get(key) != model.unet.get(key):
            raise InputError(
                f"{folder}: its {key} is {config.get(key)}, but that of {model.folder} is "
                f"{model.unet.get(key)}; use a ControlNet made for this model"
            )
    return ControlNetFolder(folder, read_weights(folder, "diffusion_pytorch_model"))


def _shared(config: Mapping[str, Any]) -> list[str]:
    """The settings in which ControlNet and UNet agree, or their tensors cannot be added."""
    keys = ["in_channels", "block_out_channels", "layers_per_block"]
    middle = config.get("mid_block_type", "UNetMidBlock2DCrossAttn")
    if "CrossAttn" in f"{config.get('down_block_types')} {middle}":
        keys += ["cross_attention_dim"]
    if config.get("addition_embed_type") is not None:
        keys += ["addition_embed_type", "addition_time_embed_dim"]
        keys += ["projection_class_embeddings_input_dim"]
    return keys
