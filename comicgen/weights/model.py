"""An SDXL model in diffusers' folder layout, as far as its configs and headers tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comicgen.errors import InputError
from comicgen.weights.folder import Weights, read_config, read_weights
from comicgen.weights.schedule import read_schedule

PIPELINE = "StableDiffusionXLPipeline"
TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
TOKENIZERS = ("tokenizer", "tokenizer_2")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
_STEMS = {
    "unet": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
    "text_encoder": "model",
    "text_encoder_2": "model",
}
_CLASSES = {
    "unet": ("UNet2DConditionModel",),
    "vae": ("AutoencoderKL",),
    "text_encoder": ("CLIPTextModel",),
    "text_encoder_2": ("CLIPTextModelWithProjection",),
    "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
    "tokenizer_2": ("CLIPTokenizer", "CLIPTokenizerFast"),
}
_OTHER_INPUTS = (
    "time_cond_proj_dim",
    "class_embed_type",
    "num_class_embeds",
    "encoder_hid_dim_type",
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model is made of.

    `sample_size` is the edge of the latents it was trained on; `layers` gives, for "unet",
    "text_encoder" and "text_encoder_2", the shape of every parameter by its normalised name;
    `weights` the files of these three and of "vae"; `unet` is the UNet's config; `schedule` how
    it was trained to see noise, in the words of diffusers' schedulers. `force_upcast` asks for the
    VAE in float32, as 16 bits may be too narrow for it.
    """

    folder: Path
    sample_size: int
    force_zeros_for_empty_prompt: bool
    force_upcast: bool
    layers: Mapping[str, Mapping[str, tuple[int, ...]]]
    weights: Mapping[str, Weights]
    unet: Mapping[str, Any]
    schedule: Mapping[str, Any]

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the model is made of; others in the folder are none of its business."""
        configs = (self.folder / part / "config.json" for part in _STEMS)
        scheduler = self.folder / "scheduler" / "scheduler_config.json"
        weights = (file for part in self.weights.values() for file in part.files)
        tokenizers = (self.folder / part / name for part in TOKENIZERS for name in TOKENIZER_FILES)
        known = (self.folder / "model_index.json", scheduler, *configs, *weights)
        return (*known, *(file for file in tokenizers if file.is_file()))

    @property
    def cross_attention_width(self) -> int:
        """How many numbers describe one token to the UNet: 2048 in SDXL."""
        width: int = self.unet["cross_attention_dim"]
        return width


def normalised(parameter: str) -> str:
    """The name of a parameter without `text_model.`, which only some files and modules have."""
    return parameter.removeprefix("text_model.")


def read_model(folder: Path) -> ModelFolder:
    """Read an SDXL model's configs and headers.

    Raises:
        InputError: the folder holds another kind of model, or a part is missing or broken.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder; name a model in diffusers' folder layout")
    index = read_config(folder / "model_index.json")
    _check_index(folder, index)
    configs = {part: read_config(folder / part / "config.json") for part in _STEMS}
    _check_unet(folder, configs["unet"])
    _check_widths(folder, configs)
    _check_vae(folder, configs["vae"])
    _check_tokenizers(folder)
    weights = {part: read_weights(folder / part, stem) for part, stem in _STEMS.items()}
    return ModelFolder(
        folder=folder,
        sample_size=_sample_size(folder, configs["unet"]),
        force_zeros_for_empty_prompt=index.get("force_zeros_for_empty_prompt", True) is True,
        force_upcast=bool(configs["vae"].get("force_upcast", True)),
        layers={part: _shapes(weights[part]) for part in ("unet", *TEXT_ENCODERS)},
        weights=weights,
        unet=configs["unet"],
        schedule=read_schedule(folder / "scheduler" / "scheduler_config.json"),
    )


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {normalised(name): tensor.shape for name, tensor in weights.tensors.items()}


def _check_index(folder: Path, index: Mapping[str, Any]) -> None:
    kind = index.get("_class_name")
    if kind != PIPELINE:
        raise InputError(f"{folder}: is a {kind}; comicgen draws with SDXL models ({PIPELINE})")
    for part, classes in _CLASSES.items():
        match index.get(part):
            case [_, str(name)] if name in classes:
                continue
            case [_, str(name)]:
                raise InputError(f"{folder}: its {part} is a {name}; SDXL has a {classes[0]} there")
        raise InputError(f"{folder}: has no {part}; use a complete SDXL model, not its refiner")


def _check_unet(folder: Path, unet: Mapping[str, Any]) -> None:
    if (channels := unet.get("in_channels")) != 4:
        kind = "an inpainting model" if channels == 9 else "no SDXL base model"
        raise InputError(
            f"{folder}: its unet has in_channels {channels}, so it is {kind}; "
            "use an SDXL base model"
        )
    if (outputs := unet.get("out_channels", 4)) != 4:
        raise InputError(f"{folder}: its unet has out_channels {outputs}; SDXL has 4")
    for key in _OTHER_INPUTS:
        if unet.get(key) is not None:
            raise InputError(
                f"{folder}: its unet has {key} {unet[key]}, an input that SDXL's does not have; "
                "use a model without it"
            )
    if unet.get("addition_embed_type") != "text_time":
        raise InputError(
            f"{folder}: its unet knows no picture sizes, so it is not of SDXL's kind; "
            "use an SDXL base model"
        )


def _check_widths(folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> None:
    widths: list[Any] = [configs[part].get("hidden_size") for part in TEXT_ENCODERS]
    wanted = configs["unet"].get("cross_attention_dim")
    if not all(type(width) is int for width in widths) or sum(widths) != wanted:
        raise InputError(
            f"{folder}: its text encoders are {' and '.join(map(str, widths))} wide, but its unet "
            f"expects {wanted} together; copy the whole model folder again"
        )


def _check_vae(folder: Path, vae: Mapping[str, Any]) -> None:
    if (latents := vae.get("latent_channels")) != 4:
        raise InputError(f"{folder}: its vae has {latents} latent channels; SDXL has 4")
    # Each block after the first halves a picture; a latent stands for 8 x 8 pixels.
    blocks = vae.get("block_out_channels")
    if not isinstance(blocks, list) or len(blocks) != 4:
        raise InputError(f"{folder}: its vae has block_out_channels {blocks}; SDXL has 4 of them")


def _check_tokenizers(folder: Path) -> None:
    for part in TOKENIZERS:
        files = {file.name for file in (folder / part).glob("*")}
        if "tokenizer.json" not in files and not {"vocab.json", "merges.txt"} <= files:
            raise InputError(
                f"{folder / part}: has neither tokenizer.json nor vocab.json with merges.txt; "
                "copy the whole model folder again"
            )


def _sample_size(folder: Path, unet: Mapping[str, Any]) -> int:
    # diffusers takes 128 where the config is silent.
    size = unet.get("sample_size") or 128
    if type(size) is not int or size < 1:
        raise InputError(f"{folder}: its unet has sample_size {size}; SDXL's is one number")
    return size
