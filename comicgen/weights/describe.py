"""What a file or folder is, for a person who wonders whether it can be used."""

import json
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comicgen.errors import InputError
from comicgen.weights.controlnet import KIND
from comicgen.weights.folder import Weights, read_config, read_weights
from comicgen.weights.header import Header, Tensor, read_header
from comicgen.weights.lora_keys import base_of, refused_kind, spell
from comicgen.weights.model import PIPELINE, read_model

_TOP_TAGS = 10
_NOTES = (
    "modelspec.title",
    "modelspec.author",
    "modelspec.architecture",
    "modelspec.description",
    "modelspec.license",
    "ss_base_model_version",
    "ss_sd_model_name",
    "ss_output_name",
    "ss_network_module",
    "ss_network_dim",
    "ss_network_alpha",
    "ss_resolution",
    "ss_num_train_images",
    "ss_epoch",
    "ss_training_comment",
)
# The first name that occurs among a file's keys tells what it is.
_KINDS = {
    "controlnet_cond_embedding.": "controlnet",
    "model.diffusion_model.": "checkpoint",
    "decoder.conv_in.": "vae",
    "down_blocks.": "unet",
    "text_projection.": "text encoder 2",
    "embeddings.token_embedding.": "text encoder",
}


def describe(path: Path) -> Mapping[str, Any]:
    """Tell as plain JSON what `path` is: weights, a model or ControlNet folder, or our picture.

    Raises:
        InputError: it is missing, damaged, or none of these.
    """
    try:
        found = _described(path)
        json.dumps(found, allow_nan=False)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); name a file that is there"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: holds a number that is none; copy it again") from error
    return found


def _described(path: Path) -> dict[str, Any]:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return _folder(path)
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is neither file nor folder; name one of these")
    match path.suffix.lower():
        case ".safetensors":
            return _weights_file(path)
        case ".png":
            return _picture(path)
    raise InputError(
        f"{path}: is nothing to inspect; name a .safetensors file, a PNG drawn by comicgen, or a "
        "model or ControlNet folder"
    )


def _weights_file(file: Path) -> dict[str, Any]:
    header = read_header(file)
    base = base_of(header.tensors)
    kind = _kind(header)
    return {
        "file": str(file),
        "kind": kind,
        **(_lora(header) if kind == "lora" else {}),
        "base": base.name,
        "cross_attention_width": base.width,
        **_amount(header.tensors),
        "trigger_words": _trigger_words(header.metadata),
        "training": {key: header.metadata[key] for key in _NOTES if key in header.metadata},
    }


def _kind(header: Header) -> str:
    if refused_kind(header.tensors) or any(spell(key) for key in header.tensors):
        return "lora"
    keys = " ".join(header.tensors)
    return next((kind for mark, kind in _KINDS.items() if mark in keys), "unknown")


def _lora(header: Header) -> dict[str, Any]:
    refused = refused_kind(header.tensors)
    spelled = [(key, spelling) for key in header.tensors if (spelling := spell(key))]
    downs = [(header.tensors[key], it) for key, it in spelled if it.role == "down"]
    return {
        "supported": refused is None,
        "family": refused or spelled[0][1].family,
        "components": sorted({spelling.component for _, spelling in spelled}),
        "layers": len(downs),
        "ranks": sorted({tensor.shape[0] for tensor, _ in downs if tensor.shape}),
    }


def _amount(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "precision": sorted({tensor.dtype for tensor in tensors.values()}),
        "tensors": len(tensors),
        "parameters": sum(tensor.parameters for tensor in tensors.values()),
    }


def _trigger_words(metadata: Mapping[str, str]) -> list[str]:
    """The phrase its author gave, else the most frequent tags of its training pictures."""
    if phrase := metadata.get("modelspec.trigger_phrase"):
        return [phrase]
    counts: Counter[str] = Counter()
    try:
        for tags in json.loads(metadata.get("ss_tag_frequency", "{}")).values():
            counts.update({tag.strip(): int(count) for tag, count in tags.items()})
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return []  # a note of another program; without it the file works all the same
    return [tag for tag, _ in counts.most_common(_TOP_TAGS)]


def _folder(folder: Path) -> dict[str, Any]:
    if (folder / "model_index.json").is_file():
        return _model(folder)
    if (folder / "config.json").is_file():
        return _controlnet(folder)
    raise InputError(
        f"{folder}: has neither model_index.json nor config.json; "
        "name the folder of a model or a ControlNet"
    )


def _model(folder: Path) -> dict[str, Any]:
    model = read_model(folder)
    return {
        "folder": str(folder),
        "kind": "model",
        "class": PIPELINE,
        "base": base_of(model.weights["unet"].tensors).name,
        "cross_attention_width": model.cross_attention_width,
        "sample_size": model.sample_size,
        "parts": {part: _part(weights) for part, weights in model.weights.items()},
        "parameters": sum(weights.parameters for weights in model.weights.values()),
    }


def _controlnet(folder: Path) -> dict[str, Any]:
    config = read_config(folder / "config.json")
    if (kind := config.get("_class_name")) != KIND:
        raise InputError(f"{folder}: is a {kind}; name the folder of a model or a {KIND}")
    return {
        "folder": str(folder),
        "kind": "controlnet",
        "class": KIND,
        "cross_attention_width": config.get("cross_attention_dim"),
        "block_out_channels": config.get("block_out_channels"),
        **_part(read_weights(folder, "diffusion_pytorch_model")),
    }


def _part(weights: Weights) -> dict[str, Any]:
    return {"files": [file.name for file in weights.files], **_amount(weights.tensors)}


def _picture(file: Path) -> dict[str, Any]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            size, text = image.size, image.info.get("comicgen")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{file}: is no PNG picture that can be read; name another") from error
    try:
        drawn = json.loads(text or "null")
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{file}: its comicgen text is damaged; draw it again with --redo"
        ) from error
    if drawn is None:
        raise InputError(
            f"{file}: has no comicgen text, so comicgen did not draw it; name one that it drew"
        )
    if not isinstance(drawn, dict):
        raise InputError(f"{file}: its comicgen text is damaged; draw it again with --redo")
    return {"file": str(file), "kind": "picture", "size": list(size), "comicgen": drawn}
