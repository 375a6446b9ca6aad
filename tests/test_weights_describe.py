"""`describe` tells what a file is in plain JSON, for files of any origin."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from lora_files import Recipe, write_kohya
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import load_file, save_file

import comicgen
from comicgen.errors import InputError
from comicgen.weights import describe, read_model

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"


def _save(file: Path, shapes: dict[str, tuple[int, ...]], **metadata: str) -> Path:
    tensors = {key: np.zeros(shape, np.float16) for key, shape in shapes.items()}
    save_file(tensors, file, metadata={"format": "pt", **metadata})
    return file


def test_a_lora_is_described_with_its_training_notes(tmp_path: Path) -> None:
    file = write_kohya(tmp_path / "a.safetensors", read_model(POCKET), Recipe(rank=2, alpha=1))
    notes = {
        "ss_base_model_version": "sdxl_base_v1-0",
        "ss_tag_frequency": json.dumps({"1_a": {"mara": 9, "beach ": 3}, "2_b": {"beach": 7}}),
        "ss_secret_path": "/home/someone",
    }
    save_file(load_file(file), file, metadata=notes)

    told = describe(file)

    assert json.loads(json.dumps(told)) == told
    assert told["kind"] == "lora"
    assert (told["family"], told["ranks"], told["supported"]) == ("kohya", [2], True)
    assert told["components"] == ["text_encoder", "text_encoder_2", "unet"]
    assert (told["base"], told["cross_attention_width"]) == (None, 224)
    assert told["precision"] == ["F32"]
    assert told["tensors"] == 3 * told["layers"]
    assert told["trigger_words"] == ["beach", "mara"]
    assert told["training"] == {"ss_base_model_version": "sdxl_base_v1-0"}


SDXL_LORA = {
    "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k.lora_down.weight": (8, 2048)
}
SD1_LORA = {
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_up.weight": (320, 8),
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": (
        8,
        768,
    ),
}


@pytest.mark.parametrize(
    ("shapes", "kind", "base"),
    [
        (SDXL_LORA, "lora", "SDXL"),
        (SD1_LORA, "lora", "SD 1"),
        ({"lora_unet_x.hada_w1_a": (2, 2)}, "lora", None),
        (
            {"transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight": (2, 2)},
            "lora",
            "Flux",
        ),
        ({"controlnet_cond_embedding.conv_in.weight": (2, 2)}, "controlnet", None),
        (
            {
                "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight": (
                    640,
                    2048,
                )
            },
            "checkpoint",
            "SDXL",
        ),
        ({"decoder.mid_block.x": (1,)}, "unknown", None),
    ],
)
def test_kind_and_base_are_told_by_names_and_shapes(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], kind: str, base: str | None
) -> None:
    told = describe(_save(tmp_path / "a.safetensors", shapes))

    assert (told["kind"], told["base"]) == (kind, base)


def test_an_unsupported_family_is_named(tmp_path: Path) -> None:
    told = describe(_save(tmp_path / "a.safetensors", {"lora_unet_x.lokr_w1": (2, 2)}))

    assert (told["family"], told["supported"], told["ranks"]) == ("LoKr", False, [])


def test_the_authors_phrase_comes_before_counted_tags(tmp_path: Path) -> None:
    phrase = {"modelspec.trigger_phrase": "mara, ink", "ss_tag_frequency": "damaged"}

    assert describe(_save(tmp_path / "a.safetensors", SD1_LORA, **phrase))["trigger_words"] == [
        "mara, ink"
    ]
    assert (
        describe(_save(tmp_path / "b.safetensors", SD1_LORA, ss_tag_frequency='{"a": [1]}'))[
            "trigger_words"
        ]
        == []
    )


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("unet/diffusion_pytorch_model", "unet"),
        ("vae/diffusion_pytorch_model", "vae"),
        ("text_encoder/model", "text encoder"),
        ("text_encoder_2/model", "text encoder 2"),
    ],
)
def test_the_parts_of_a_model_are_told_apart(part: str, kind: str) -> None:
    assert describe(POCKET / f"{part}.safetensors")["kind"] == kind


def test_a_model_folder_is_described_by_its_parts() -> None:
    told = describe(POCKET)

    assert json.loads(json.dumps(told)) == told
    assert (told["kind"], told["class"]) == ("model", "StableDiffusionXLPipeline")
    assert told["parts"]["unet"]["precision"] == ["F16"]
    assert told["parameters"] == sum(part["parameters"] for part in told["parts"].values())


def test_a_controlnet_folder_is_described_without_a_model(tmp_path: Path) -> None:
    config = {"_class_name": "ControlNetModel", "cross_attention_dim": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _save(tmp_path / "diffusion_pytorch_model.safetensors", {"x": (2, 3)})

    told = describe(tmp_path)

    assert (told["kind"], told["cross_attention_width"], told["parameters"]) == (
        "controlnet",
        2048,
        6,
    )


def test_our_pictures_tell_how_they_were_drawn(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_itxt("comicgen", json.dumps({"prompt": "Möwe"}))
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png", pnginfo=info)

    told = describe(tmp_path / "a.png")

    assert (told["kind"], told["size"], told["comicgen"]) == ("picture", [4, 2], {"prompt": "Möwe"})


def test_anything_else_is_refused_by_name(tmp_path: Path) -> None:
    Image.new("RGB", (4, 2)).save(tmp_path / "foreign.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n1234")
    (tmp_path / "weights.ckpt").write_bytes(b"pickle")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name, why in (
        ("foreign.png", "comicgen did not draw it"),
        ("broken.png", "is no PNG picture"),
        ("weights.ckpt", "is nothing to inspect"),
        ("empty.safetensors", "is no safetensors file"),
        ("folder", "has neither model_index.json nor config.json"),
        ("missing.png", "No such file"),
    ):
        with pytest.raises(InputError, match=rf"{name}: .*{why}"):
            describe(tmp_path / name)


def test_no_file_however_odd_is_more_than_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for name, text in (("number.png", "5"), ("nan.png", '{"seed": NaN}')):
        info = PngInfo()
        info.add_text("comicgen", text)
        Image.new("RGB", (4, 2)).save(tmp_path / name, pnginfo=info)
    for name, why in (
        ("pipe.png", "is neither file nor folder"),
        ("loop.png", "cannot be read"),
        ("x" * 300, "File name too long"),
        ("number.png", "its comicgen text is damaged"),
        ("nan.png", "holds a number that is none"),
    ):
        with pytest.raises(InputError, match=why):
            describe(tmp_path / name)


def test_endless_counts_of_tags_are_no_trigger_words(tmp_path: Path) -> None:
    tags = json.dumps({"a": {"mara": float("inf")}})
    file = _save(tmp_path / "a.safetensors", {"x": (1,)}, ss_tag_frequency=tags)

    assert describe(file)["trigger_words"] == []
