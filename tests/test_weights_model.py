"""A model folder is read from its configs and headers, and refused with the part's name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import comicgen
from comicgen.errors import InputError
from comicgen.weights import ModelFolder, read_controlnet, read_model

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may spoil."""
    return Path(shutil.copytree(POCKET, tmp_path / "model"))


@pytest.fixture(scope="module")
def pocket() -> ModelFolder:
    return read_model(POCKET)


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _edit_schedule(folder: Path, **changes: Any) -> None:
    _edit(folder / "scheduler" / "scheduler_config.json", **changes)


def test_the_embedded_model_is_understood(pocket: ModelFolder) -> None:
    assert pocket.folder == POCKET
    assert pocket.sample_size == 32
    assert pocket.cross_attention_width == 224
    assert pocket.force_zeros_for_empty_prompt is False
    assert pocket.layers["unet"]["conv_in.weight"] == (64, 4, 3, 3)
    for component, width in (("text_encoder", 96), ("text_encoder_2", 128)):
        layer = "encoder.layers.0.self_attn.q_proj.weight"
        assert pocket.layers[component][layer] == (width, width)
    assert [file.name for file in pocket.weights["vae"].files] == [
        "diffusion_pytorch_model.safetensors"
    ]


def test_fp16_variants_are_used_where_there_is_no_plain_file(folder: Path) -> None:
    plain = folder / "text_encoder" / "model.safetensors"
    plain.rename(plain.with_name("model.fp16.safetensors"))

    model = read_model(folder)

    assert model.weights["text_encoder"].variant == "fp16"
    assert model.weights["text_encoder_2"].variant is None
    shutil.copy(plain.with_name("model.fp16.safetensors"), plain)
    assert read_model(folder).weights["text_encoder"].files == (plain,)


def _shard(part: Path, stem: str) -> Path:
    whole = part / f"{stem}.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    homes = {name: f"{stem}-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(homes.values()):
        save_file({name: tensors[name] for name in names if homes[name] == file}, part / file)
    whole.unlink()
    index = part / f"{stem}.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return index


def test_shards_are_as_good_as_one_file(folder: Path, pocket: ModelFolder) -> None:
    _shard(folder / "unet", "diffusion_pytorch_model")

    model = read_model(folder)

    assert model.layers == pocket.layers
    assert len(model.weights["unet"].files) == 2


def test_a_shard_index_leads_out_of_its_folder_or_to_the_wrong_file_in_vain(folder: Path) -> None:
    index = _shard(folder / "text_encoder", "model")
    homes = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(homes.values()))
    for wrong, why in (
        (dict.fromkeys(homes, "../model.safetensors"), "does not say which file"),
        (dict.fromkeys(homes, first), "not in the file that it names"),
        ({**homes, "more": second}, "1 tensors are not in the file"),
        ({**homes, "more": "model-00003.safetensors"}, "model-00003.safetensors: cannot be read"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))

        with pytest.raises(InputError, match=why):
            read_model(folder)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _pickle(folder: Path) -> None:
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))


def test_of_a_scheduler_only_the_models_own_settings_are_read(folder: Path) -> None:
    _edit_schedule(folder, timestep_spacing="trailing", use_karras_sigmas=True)

    assert read_model(folder).schedule == {
        "num_train_timesteps": 1000,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "trained_betas": None,
        "prediction_type": "epsilon",
        "timestep_spacing": "trailing",
        "steps_offset": 1,
        "rescale_betas_zero_snr": False,
    }


SPOILERS: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: _remove(f / "model_index.json"), "model_index.json: is missing; copy"),
    (lambda f: _remove(f / "vae"), r"vae/config.json: is missing; copy"),
    (lambda f: _remove(f / "tokenizer_2" / "tokenizer.json"), r"tokenizer_2: has neither"),
    (lambda f: _remove(f / "scheduler"), r"scheduler_config.json: is missing"),
    (lambda f: _remove(f / "unet" / "diffusion_pytorch_model.safetensors"), "unet: has no "),
    (_pickle, r"vae: has only pickled weights.*safe_serialization"),
    (lambda f: (f / "unet" / "config.json").write_text("{"), r"unet/config.json: is not JSON"),
    (lambda f: (f / "unet" / "config.json").write_text("[]"), r"is not a JSON object"),
    (
        lambda f: _edit(f / "model_index.json", _class_name="StableDiffusionPipeline"),
        "is a StableDiffusionPipeline; comicgen draws with SDXL",
    ),
    (lambda f: _edit(f / "model_index.json", text_encoder=[None, None]), "not its refiner"),
    (
        lambda f: _edit(f / "model_index.json", unet=["diffusers", "UNet3DConditionModel"]),
        "its unet is a UNet3DConditionModel",
    ),
    (lambda f: _edit(f / "unet" / "config.json", in_channels=9), "an inpainting model"),
    (lambda f: _edit(f / "unet" / "config.json", addition_embed_type=None), "not of SDXL's kind"),
    (lambda f: _edit(f / "unet" / "config.json", sample_size=[32, 32]), "sample_size"),
    (lambda f: _edit(f / "text_encoder" / "config.json", hidden_size=97), "97 and 128 wide"),
    (lambda f: _edit(f / "unet" / "config.json", out_channels=8), "out_channels 8"),
    (lambda f: _edit(f / "unet" / "config.json", time_cond_proj_dim=256), "time_cond_proj_dim 256"),
    (lambda f: _edit(f / "vae" / "config.json", latent_channels=16), "16 latent channels"),
    (lambda f: _edit(f / "vae" / "config.json", block_out_channels=[64, 64, 64]), "has 4 of them"),
    (lambda f: _edit_schedule(f, _class_name="EDMEulerScheduler"), "EDMEulerScheduler, made for"),
    (lambda f: _edit_schedule(f, prediction_type="sample"), "prediction_type is 'sample'"),
    (lambda f: _edit_schedule(f, timestep_spacing="odd"), "timestep_spacing is 'odd'"),
    (lambda f: _edit_schedule(f, num_train_timesteps="1000"), "num_train_timesteps is '1000'"),
    (lambda f: _edit_schedule(f, trained_betas=[2.0]), r"trained_betas is \[2.0\]"),
]


@pytest.mark.parametrize(("spoil", "why"), SPOILERS)
def test_what_is_no_whole_sdxl_model_is_refused(
    folder: Path, spoil: Callable[[Path], Any], why: str
) -> None:
    spoil(folder)

    with pytest.raises(InputError, match=why) as error:
        read_model(folder)
    assert str(folder) in str(error.value)


def _controlnet(folder: Path, **changes: Any) -> Path:
    """A ControlNet's config over a token weights file: only the header is looked at."""
    unet = json.loads((POCKET / "unet" / "config.json").read_text())
    config = unet | {"_class_name": "ControlNetModel", "conditioning_channels": 3} | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {"controlnet_cond_embedding.conv_in.weight": np.zeros((16, 3, 3, 3), np.float16)},
        folder / "diffusion_pytorch_model.safetensors",
    )
    return folder


SMALL = {
    "down_block_types": ["DownBlock2D"] * 3,
    "mid_block_type": "UNetMidBlock2D",
    "cross_attention_dim": None,
}


@pytest.mark.parametrize("changes", [{}, SMALL, {"addition_embed_type": None}])
def test_a_controlnet_for_the_model_fits(
    tmp_path: Path, pocket: ModelFolder, changes: dict[str, Any]
) -> None:
    found = read_controlnet(_controlnet(tmp_path / "net", **changes), pocket)

    assert [file.name for file in found.weights.files] == ["diffusion_pytorch_model.safetensors"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"_class_name": "ControlNetUnionModel"}, "is a ControlNetUnionModel"),
        ({"cross_attention_dim": 2048}, "cross_attention_dim is 2048, but .* 224"),
        ({"block_out_channels": [320, 640, 1280]}, "block_out_channels is"),
        ({"layers_per_block": 2}, "layers_per_block is 2"),
        ({"projection_class_embeddings_input_dim": 2816}, "2816, but .* 320"),
        ({"conditioning_channels": 1}, "1 channels"),
        ({"global_pool_conditions": True}, "pools"),
    ],
)
def test_a_controlnet_for_another_model_is_refused_with_the_difference(
    tmp_path: Path, pocket: ModelFolder, changes: dict[str, Any], why: str
) -> None:
    folder = _controlnet(tmp_path / "net", **changes)

    with pytest.raises(InputError, match=why):
        read_controlnet(folder, pocket)
