"""SDXL at full size with random weights: as fast and as large as a real one, without a download.

    python scripts/full_size.py FOLDER

writes a model, a ControlNet for it and four LoRAs in 16 bits, 10 GB. On a GPU that takes half a
minute; a CPU needs several for so many random numbers.

The pictures show nothing, but every input moves them: `unet` and `controlnet` scale the layers
through which text, pooled embedding, time_ids and control come in, which random weights leave
almost without a say.
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    EulerDiscreteScheduler,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from comicgen import pocket
from comicgen.weights import read_model

LORAS = ("a", "b", "c", "d")
RANK = 32

_VOCABULARY = 49408
_SILENT = ("controlnet_down", "controlnet_mid", "controlnet_cond_embedding.conv_out")
_CHANGED_BY_LORAS = r"\.(to_[qkv]|to_out\.0|proj_in|proj_out|ff\.net\.0\.proj|ff\.net\.2)\.weight$"


@dataclass(frozen=True)
class TextShape:
    """A CLIP text encoder."""

    width: int
    layers: int
    heads: int
    activation: str


@dataclass(frozen=True)
class Shape:
    """Widths and depths of an SDXL model; one value for each level where there are several."""

    sample_size: int = 128
    channels: tuple[int, ...] = (320, 640, 1280)
    heads: tuple[int, ...] = (5, 10, 20)
    transformers: tuple[int, ...] = (1, 2, 10)
    layers: int = 2
    number_width: int = 256
    vae_channels: tuple[int, ...] = (128, 256, 512, 512)
    text: TextShape = field(default=TextShape(768, 12, 12, "quick_gelu"))
    text_2: TextShape = field(default=TextShape(1280, 32, 20, "gelu"))


SDXL = Shape()


@dataclass(frozen=True)
class Parts:
    """A model and a ControlNet in diffusers' folder layout, and LoRA files."""

    model: Path
    controlnet: Path
    loras: tuple[Path, ...]

    @property
    def complete(self) -> bool:
        """Whether the file that `write` writes last is there."""
        return self.loras[-1].is_file()


def parts_in(folder: Path) -> Parts:
    """Where `write` puts the parts of a folder."""
    loras = tuple(folder / "loras" / f"{name}.safetensors" for name in LORAS)
    return Parts(folder / "model", folder / "controlnet", loras)


def write(folder: Path, device: torch.device, shape: Shape = SDXL) -> Parts:
    """Write all parts in float16, made on `device`."""
    parts = parts_in(folder)
    _write_networks(parts, device, shape)
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(pocket.MODEL / name, parts.model / name, dirs_exist_ok=True)
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing="leading",
        steps_offset=1,
    )
    scheduler.save_pretrained(parts.model / "scheduler")
    index = _json(pocket.MODEL / "model_index.json") | {"force_zeros_for_empty_prompt": True}
    (parts.model / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    write_loras(parts.loras, parts.model, device)
    return parts


def write_loras(files: Iterable[Path], model: Path, device: torch.device) -> None:
    """Write LoRAs for the attention and feed-forward layers of a model's UNet, PEFT's spelling."""
    shapes = {
        name.removesuffix(".weight"): shape
        for name, shape in read_model(model).layers["unet"].items()
        if re.search(_CHANGED_BY_LORAS, name)
    }
    for seed, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(_lora(shapes, device, seed), file, metadata={"format": "pt"})


def unet(device: torch.device, seed: int = 0, shape: Shape = SDXL) -> Any:
    """SDXL's UNet in float32."""
    torch.manual_seed(seed)
    with device:
        network = UNet2DConditionModel(
            sample_size=shape.sample_size,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=shape.channels,
            layers_per_block=shape.layers,
            cross_attention_dim=shape.text.width + shape.text_2.width,
            transformer_layers_per_block=shape.transformers,
            attention_head_dim=shape.heads,
            addition_embed_type="text_time",
            addition_time_embed_dim=shape.number_width,
            projection_class_embeddings_input_dim=shape.text_2.width + 6 * shape.number_width,
            use_linear_projection=True,
        )
    network.eval().requires_grad_(False)
    _listen(network, shape.text_2.width)
    network.conv_out.weight.mul_(2)
    return network


def controlnet(unet: Any, seed: int = 1) -> Any:
    """A ControlNet for it in its dtype, whose zero-initialised outputs are filled."""
    torch.manual_seed(seed)
    network = ControlNetModel.from_unet(unet, load_weights_from_unet=True)
    network.eval().requires_grad_(False).to(unet.device, unet.dtype)
    for name, parameter in network.named_parameters():
        if name.startswith(_SILENT):
            fan_in = parameter[0].numel()
            noise = torch.randn(parameter.shape, device=unet.device) / fan_in**0.5
            parameter.copy_(noise if parameter.ndim > 1 else noise * 0)
    return network


def vae(device: torch.device, seed: int = 2, shape: Shape = SDXL) -> Any:
    """SDXL's VAE in float32, as it is where 16 bits are enough for it."""
    torch.manual_seed(seed)
    with device:
        network = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=shape.vae_channels,
            layers_per_block=shape.layers,
            latent_channels=4,
            sample_size=8 * shape.sample_size,
            scaling_factor=0.13025,
            force_upcast=False,
        )
    return network.eval().requires_grad_(False)


def text_encoders(device: torch.device, seed: int = 3, shape: Shape = SDXL) -> dict[str, Any]:
    """Both text encoders in float32, by the names of their folders.

    Their special tokens are those of the embedded model's tokenizers, which `write` copies.
    """
    torch.manual_seed(seed)
    with device:
        return {
            "text_encoder": CLIPTextModel(_text_config("text_encoder", shape.text)),
            "text_encoder_2": CLIPTextModelWithProjection(
                _text_config("text_encoder_2", shape.text_2)
            ),
        }


def _write_networks(parts: Parts, device: torch.device, shape: Shape) -> None:
    network = unet(device, shape=shape).half()
    network.save_pretrained(parts.model / "unet")
    controlnet(network).save_pretrained(parts.controlnet)
    del network  # 5 GB
    vae(device, shape=shape).half().save_pretrained(parts.model / "vae")
    for name, encoder in text_encoders(device, shape=shape).items():
        encoder.half().save_pretrained(parts.model / name)


def _text_config(name: str, shape: TextShape) -> CLIPTextConfig:
    embedded = _json(pocket.MODEL / name / "config.json")
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    return CLIPTextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=4 * shape.width,
        projection_dim=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        hidden_act=shape.activation,
        **{token: embedded[token] for token in tokens},
    )


def _lora(
    shapes: Mapping[str, tuple[int, ...]], device: torch.device, seed: int
) -> dict[str, Tensor]:
    """Factors of which the product is about a sixth of the weights that it is added to."""
    torch.manual_seed(seed)
    tensors = {}
    for layer, (wide, read, *_) in shapes.items():
        down = torch.randn(RANK, read, device=device) / read**0.5
        up = 0.1 * torch.randn(wide, RANK, device=device) / RANK**0.5
        tensors[f"unet.{layer}.lora_A.weight"] = down.half().cpu()
        tensors[f"unet.{layer}.lora_B.weight"] = up.half().cpu()
    return tensors


def _listen(network: Any, pooled: int) -> None:
    """Scale the layers that let the conditioning in.

    `pooled` is how many columns of add_embedding.linear_1 read the pooled embedding; those of
    time_ids follow.
    """
    for name, module in network.named_modules():
        if name.endswith(("attn2.to_out.0", "attn2.to_v")):
            module.weight.mul_(10)
    network.add_embedding.linear_1.weight[:, pooled:].mul_(2)
    network.add_embedding.linear_2.weight.mul_(3)


def _json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    write(parser.parse_args().folder, device)


if __name__ == "__main__":
    main()
