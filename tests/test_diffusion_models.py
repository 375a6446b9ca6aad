"""Models are loaded whole, in the dtype asked for, or refused by name."""

import shutil
from pathlib import Path

import pytest
import torch
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


def test_a_part_of_other_shapes_than_its_config_is_refused(copied: Path) -> None:
    config = copied / "vae" / "config.json"
    config.write_text(config.read_text().replace("96,", "64,"))

    with pytest.raises(InputError, match="vae: cannot be loaded"):
        load_model(copied, CPU, torch.float32)


def test_a_controlnet_is_loaded_beside_its_model(tmp_path: Path, pocket: Components) -> None:
    written = write_controlnet(tmp_path / "controlnet", pocket)

    assert load_controlnet(written.folder, pocket).dtype == torch.float32
