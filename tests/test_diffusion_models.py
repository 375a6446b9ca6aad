"""Models are loaded whole, in the dtype asked for, or refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from drawings import write_controlnet
from safetensors.torch import load_file, save_file

from comicgen.diffusion.models import Components, load_controlnet, load_model
from comicgen.errors import InputError
from comicgen.pocket import MODEL

CPU = torch.device("cpu")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def test_every_network_is_frozen_and_in_the_dtype_asked_for() -> None:
    model = load_model(MODEL, CPU, torch.bfloat16)
    networks = (model.unet, model.vae, model.text_encoder, model.text_encoder_2)

    assert {network.dtype for network in networks} == {torch.bfloat16}
    assert not any(network.training for network in networks)
    assert not any(each.requires_grad for network in networks for each in network.parameters())


def test_a_vae_that_needs_float32_gets_it(copied: Path) -> None:
    config = copied / "vae" / "config.json"
    config.write_text(config.read_text().replace('"force_upcast": false', '"force_upcast": true'))
    model = load_model(copied, CPU, torch.float16)

    assert (model.vae.dtype, model.unet.dtype) == (torch.float32, torch.float16)


def test_the_fp16_variant_is_found(copied: Path, pocket: Components) -> None:
    folder = copied / "unet"
    name = "diffusion_pytorch_model"
    (folder / f"{name}.safetensors").rename(folder / f"{name}.fp16.safetensors")
    model = load_model(copied, CPU, torch.float32)

    assert torch.equal(model.unet.conv_in.weight, pocket.unet.conv_in.weight)


@pytest.mark.parametrize("part", ["unet/diffusion_pytorch_model", "text_encoder_2/model"])
def test_a_part_that_lacks_tensors_is_refused(part: str, copied: Path) -> None:
    file = copied / f"{part}.safetensors"
    tensors = load_file(file)
    del tensors[sorted(tensors)[-1]]
    save_file(tensors, file, metadata={"format": "pt"})

    with pytest.raises(InputError, match=rf"{part.split('/')[0]}: lacks 1 tensors"):
        load_model(copied, CPU, torch.float32)


def _edit(copied: Path, part: str, **changes: Any) -> None:
    config = copied / part / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("vae", {"block_out_channels": [32, 64, 64, 128]}),
        ("unet", {"act_fn": None}),
        ("unet", {"norm_num_groups": 0}),
        ("text_encoder", {"hidden_act": "odd"}),
        ("text_encoder_2", {"vocab_size": "many"}),
    ],
)
def test_a_part_with_a_config_for_other_weights_or_none_is_refused(
    part: str, changes: dict[str, Any], copied: Path
) -> None:
    _edit(copied, part, **changes)

    with pytest.raises(InputError, match=rf"{part}: cannot be loaded"):
        load_model(copied, CPU, torch.float32)


@pytest.mark.parametrize(
    ("part", "changes"),
    [("vae", {"mid_block_add_attention": False}), ("unet", {"mid_block_type": None})],
)
def test_a_config_that_leaves_tensors_out_is_refused(
    part: str, changes: dict[str, Any], copied: Path
) -> None:
    _edit(copied, part, **changes)

    with pytest.raises(InputError, match=rf"{part}: its config.json has no place for"):
        load_model(copied, CPU, torch.float32)


PREFIX = "text_model."


def _respell(copied: Path, prefix: str) -> None:
    """Name the text encoders' tensors as older or newer transformers do, with what CLIP adds."""
    for part in ("text_encoder", "text_encoder_2"):
        file = copied / part / "model.safetensors"
        tensors = {
            key if key.startswith("text_projection") else prefix + key.removeprefix(PREFIX): tensor
            for key, tensor in load_file(file).items()
        }
        more = {f"{prefix}embeddings.position_ids": torch.arange(77), "logit_scale": torch.ones(1)}
        save_file(tensors | more, file, metadata={"format": "pt"})


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_text_encoders_are_known_by_either_of_their_names(
    prefix: str, copied: Path, pocket: Components
) -> None:
    _respell(copied, prefix)

    _assert_equal(load_model(copied, CPU, torch.float32), pocket)


@pytest.mark.parametrize(
    "how",
    [{"max_shard_size": "1MB"}, {"variant": "fp16"}, {"variant": "fp16", "max_shard_size": "1MB"}],
)
def test_what_a_pipeline_saves_is_loaded_bit_for_bit(
    how: dict[str, str], tmp_path: Path, pocket: Components
) -> None:
    pipe = StableDiffusionXLPipeline.from_pretrained(MODEL, add_watermarker=False)
    pipe.to(torch.float16)
    pipe.save_pretrained(tmp_path, **how)
    model = load_model(tmp_path, CPU, torch.float32)

    _assert_equal(model, pocket)
    assert model.folder.layers == pocket.folder.layers
    assert model.folder.schedule == pocket.folder.schedule


def _assert_equal(one: Components, other: Components) -> None:
    for part in ("unet", "vae", "text_encoder", "text_encoder_2"):
        expected = dict(getattr(other, part).named_parameters())
        loaded = dict(getattr(one, part).named_parameters())
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_controlnet_is_loaded_beside_its_model(tmp_path: Path, pocket: Components) -> None:
    written = write_controlnet(tmp_path / "controlnet", pocket)

    assert load_controlnet(written.folder, pocket).dtype == torch.float32
