"""Every tensor of a LoRA file finds its layer, or the file is refused with the reason."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lora_files import COMPONENTS, Recipe, factors, write_kohya, write_peft
from safetensors.numpy import load_file, save_file

import comicgen
from comicgen.errors import InputError
from comicgen.weights import LoraFile, LoraLayer, ModelFolder, read_lora, read_model

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"
Q = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
K2 = "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"
OUT = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0"
TE = "encoder.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def pocket() -> ModelFolder:
    return read_model(POCKET)


def _pair(down: str, up: str, n_in: int, n_out: int, rank: int = 2) -> dict[str, np.ndarray]:
    return {
        down: np.ones((rank, n_in), np.float32),
        up: np.ones((n_out, rank), np.float32),
    }


def _kohya(layer: str, n_in: int, n_out: int, rank: int = 2) -> dict[str, np.ndarray]:
    return _pair(f"{layer}.lora_down.weight", f"{layer}.lora_up.weight", n_in, n_out, rank)


def _peft(layer: str, n_in: int, n_out: int, rank: int = 2) -> dict[str, np.ndarray]:
    return _pair(f"{layer}.lora_A.weight", f"{layer}.lora_B.weight", n_in, n_out, rank)


def _save(tmp_path: Path, tensors: dict[str, np.ndarray], **metadata: object) -> Path:
    file = tmp_path / "some.safetensors"
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    save_file(tensors, file, metadata={"format": "pt", **texts})
    return file


@pytest.mark.parametrize("write", [write_kohya, write_peft])
def test_both_families_give_the_same_layers(
    tmp_path: Path, pocket: ModelFolder, write: Callable[[Path, ModelFolder, Recipe], Path]
) -> None:
    recipe = Recipe(rank=3)
    wanted = {(it.component, f"{it.layer}.weight") for it in factors(pocket, recipe)}

    lora = read_lora(write(tmp_path / "a.safetensors", pocket, recipe), pocket)

    assert {(layer.component, layer.parameter) for layer in lora.layers} == wanted
    assert {layer.rank for layer in lora.layers} == {3}
    assert {layer.component for layer in lora.layers} == set(COMPONENTS)
    convolutions = [it for it in wanted if len(pocket.layers[it[0]][it[1]]) == 4]
    assert len(convolutions) > 10


def test_alpha_is_a_tensor_in_kohyas_form_and_metadata_in_diffusers(
    tmp_path: Path, pocket: ModelFolder
) -> None:
    recipe = Recipe(rank=4, alpha=1.0)

    kohya = read_lora(write_kohya(tmp_path / "k.safetensors", pocket, recipe), pocket)
    peft = read_lora(write_peft(tmp_path / "p.safetensors", pocket, recipe), pocket)

    assert all(layer.alpha and layer.alpha.endswith(".alpha") for layer in kohya.layers)
    assert {(layer.alpha, layer.scale) for layer in peft.layers} == {(None, 0.25)}


SPELLINGS = {
    f"unet.{Q}.lora_{{A|B}}.weight": Q,
    f"base_model.model.{Q}.lora_{{A|B}}.weight": Q,
    f"unet.base_model.model.{Q}.lora_{{A|B}}.weight": Q,
    f"base_model.model.unet.{Q}.lora_{{A|B}}.weight": Q,
    f"{Q}.lora_{{A|B}}.weight": Q,
    f"unet.{Q}.lora.{{down|up}}.weight": Q,
    f"unet.{Q.replace('attn1.', 'attn1.processor.')}_lora.{{down|up}}.weight": Q,
    f"unet.{OUT.replace('attn1.to_out.0', 'attn1.processor.to_out_lora')}.{{down|up}}.weight": OUT,
    f"text_encoder.{TE}.lora_linear_layer.{{down|up}}.weight": TE,
    f"text_encoder.text_model.{TE}.lora_linear_layer.{{down|up}}.weight": TE,
    "text_encoder.text_model.encoder.layers.0.self_attn.to_q_lora.{down|up}.weight": TE,
    f"text_encoder.{TE}.lora_{{A|B}}.weight": TE,
    f"lora_te1_text_model_{TE.replace('.', '_')}.lora_{{down|up}}.weight": TE,
    f"lora_te_text_model_{TE.replace('.', '_')}.lora_{{down|up}}.weight": TE,
    f"lora_unet_{OUT.replace('.', '_')}.lora_{{down|up}}.weight": OUT,
}


@pytest.mark.parametrize(("spelling", "layer"), SPELLINGS.items())
def test_every_spelling_of_the_past_finds_its_layer(
    tmp_path: Path, pocket: ModelFolder, spelling: str, layer: str
) -> None:
    match = re.search(r"\{(\w+)\|(\w+)\}", spelling)
    assert match
    down, up = (spelling.replace(match[0], word) for word in match.groups())
    width = 96 if layer == TE else 128
    component = "text_encoder" if layer == TE else "unet"

    lora = read_lora(_save(tmp_path, _pair(down, up, width, width)), pocket)

    assert lora.layers == (LoraLayer(component, f"{layer}.weight", down, up, None, 2, 1.0),)


def test_two_unknown_keys_of_many_are_both_named(tmp_path: Path, pocket: ModelFolder) -> None:
    file = write_peft(tmp_path / "p.safetensors", pocket, Recipe(components=("unet",)))
    tensors = load_file(file) | _peft("unet.down_blocks.7.nowhere", 4, 4)
    file = _save(tmp_path, tensors)

    with pytest.raises(InputError, match=rf"2 of {len(tensors)} tensors") as error:
        read_lora(file, pocket)
    for key in ("lora_A.weight", "lora_B.weight"):
        assert f"unet.down_blocks.7.nowhere.{key}" in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"lora_unet_x.hada_w1_a": np.ones((2, 2), np.float32)}, "is LoHa"),
        ({"lora_unet_x.lokr_w1": np.ones((2, 2), np.float32)}, "is LoKr"),
        (
            _peft(f"unet.{Q}", 128, 128)
            | {f"unet.{Q}.lora_magnitude_vector": np.ones(128, np.float32)},
            "is DoRA",
        ),
        (
            _kohya("lora_unet_x", 4, 4) | {"lora_unet_x.dora_scale": np.ones(4, np.float32)},
            "is DoRA",
        ),
        (
            _kohya("lora_unet_x", 4, 4)
            | {"lora_unet_x.lora_mid.weight": np.ones((2, 2), np.float32)},
            "Tucker",
        ),
        (_kohya("lora_unet_input_blocks_4_1_proj_in", 4, 4), "SGM"),
        (_kohya(f"lora_unet_{K2.replace('.', '_')}", 768, 128), r"made for SD 1 .*768 wide"),
        (_peft(f"unet.{K2}", 2048, 128), r"made for SDXL .*2048 wide.* 224 wide"),
        (_peft("transformer.single_transformer_blocks.0.attn.to_q", 4, 4), "made for Flux"),
        (_peft(f"unet.{Q}", 128, 64), r"do not make up a weight of \[128, 128\]"),
        (_peft(f"unet.{Q}", 64, 128), r"do not make up a weight"),
        (_peft("lora_te2_text_projection", 4, 4), r"do not make up a weight"),
        ({f"unet.{Q}.lora_A.weight": np.ones((2, 128), np.float32)}, "without its other half"),
        ({f"unet.{Q}.alpha": np.ones((), np.float32)}, "without its other half"),
        (
            _peft(f"unet.{Q}", 128, 128) | {f"unet.{Q}.alpha": np.ones(2, np.float32)},
            "is not one number",
        ),
        (
            {key: value.astype(np.int8) for key, value in _peft(f"unet.{Q}", 128, 128).items()},
            "holds I8",
        ),
        (
            _peft(f"unet.{Q}", 128, 128) | {f"unet.{Q}.lora_B.bias": np.ones(128, np.float32)},
            r"1 of 3 tensors .*lora_B.bias",
        ),
        (
            _peft(f"unet.{Q}", 128, 128) | _kohya(f"lora_unet_{Q.replace('.', '_')}", 128, 128),
            "both",
        ),
        ({"weight": np.ones(2, np.float32)}, "is no LoRA"),
    ],
)
def test_what_cannot_be_used_whole_is_refused(
    tmp_path: Path, pocket: ModelFolder, tensors: dict[str, np.ndarray], why: str
) -> None:
    file = _save(tmp_path, tensors)

    with pytest.raises(InputError, match=why) as error:
        read_lora(file, pocket)
    assert str(error.value).startswith(f"{file}: ")


def _with_adapter(tmp_path: Path, model: ModelFolder, **fields: object) -> LoraFile:
    tensors = _peft(f"unet.{Q}", 128, 128) | _peft(f"unet.{OUT}", 128, 128)
    adapter = {f"unet.{key}": value for key, value in fields.items()}
    return read_lora(_save(tmp_path, tensors, lora_adapter_metadata=adapter), model)


@pytest.mark.parametrize(
    ("fields", "scales"),
    [
        ({"r": 2, "lora_alpha": 1}, {Q: 0.5, OUT: 0.5}),
        ({"r": 2, "lora_alpha": 8, "use_rslora": True}, {Q: 8 / 2**0.5, OUT: 8 / 2**0.5}),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {"attn1.to_q": 6}}, {Q: 3.0, OUT: 1.0}),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {f"^{Q}": 6}}, {Q: 3.0, OUT: 1.0}),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {"^to_q": 6}}, {Q: 1.0, OUT: 1.0}),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {"q": 6}}, {Q: 1.0, OUT: 1.0}),
        (
            {"r": 64, "rank_pattern": {"to_q": 2, r"to_out\.0": 2}, "lora_alpha": 4},
            {Q: 2.0, OUT: 2.0},
        ),
        ({}, {Q: 1.0, OUT: 1.0}),
    ],
)
def test_adapter_metadata_give_each_layer_its_scale(
    tmp_path: Path, pocket: ModelFolder, fields: dict[str, object], scales: dict[str, float]
) -> None:
    lora = _with_adapter(tmp_path, pocket, **fields)

    found = {layer.parameter.removesuffix(".weight"): layer.scale for layer in lora.layers}
    assert found == pytest.approx(scales)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"r": 4, "lora_alpha": 4}, "rank 4, but its tensors have 2"),
        ({"lora_alpha": 4}, "rank 8, but its tensors have 2"),
        ({"r": 2, "use_dora": True}, "is DoRA"),
        ({"r": 2, "alpha_pattern": {".*to_q": 1}}, "by the expression"),
        ({"r": 2, "alpha_pattern": [1]}, "no JSON object"),
        ({"r": 2, "lora_alpha": "much"}, "'much' where a number belongs"),
        ({"r": 2, "lora_alpha": float("nan")}, "nan where a number belongs"),
    ],
)
def test_adapter_metadata_that_cannot_be_followed_are_refused(
    tmp_path: Path, pocket: ModelFolder, fields: dict[str, object], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        _with_adapter(tmp_path, pocket, **fields)


def test_pefts_own_file_is_refused_where_its_scale_stands_in_another(
    tmp_path: Path, pocket: ModelFolder
) -> None:
    file = tmp_path / "adapter_model.safetensors"
    save_file(_peft(f"base_model.model.{Q}", 128, 128), file)
    config = tmp_path / "adapter_config.json"

    config.write_text(json.dumps({"r": 2, "lora_alpha": 2}))
    assert read_lora(file, pocket).layers[0].scale == 1.0
    config.write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    with pytest.raises(InputError, match=r"strength stands in adapter_config.json"):
        read_lora(file, pocket)


def test_weights_are_read_without_torch() -> None:
    code = "import sys, comicgen.weights; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
