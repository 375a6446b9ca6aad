"""Texts become the embeddings that diffusers would give, each encoded once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

import comicgen
from comicgen.diffusion import text as text_module
from comicgen.diffusion.text import TextEncoding
from comicgen.prompts import load_tokenizers

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"
CPU = torch.device("cpu")
PROMPTS = [
    "",
    "a farmer in a blue shirt walking on the left on a beach at night, comic book style",
    "BLURRY, 灯塔 🚀 !!!",
    "mid <|endoftext|> dle",
    "word " * 100,
]


@pytest.fixture(scope="module")
def encoders() -> tuple[Any, Any]:
    kinds = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}
    first, second = (
        kind.from_pretrained(POCKET / name, dtype=torch.float32).eval()
        for name, kind in kinds.items()
    )
    return first, second


@pytest.fixture
def encoding(encoders: tuple[Any, Any]) -> TextEncoding:
    return TextEncoding(load_tokenizers(POCKET), encoders, CPU, torch.float32)


@pytest.fixture
def runs(encoders: tuple[Any, Any]) -> Any:
    """Counts how often each encoder runs."""
    counts = [0, 0]

    def counting(place: int) -> Any:
        def count(*_: Any) -> None:
            counts[place] += 1

        return count

    hooks = [encoder.register_forward_hook(counting(n)) for n, encoder in enumerate(encoders)]
    yield counts
    for hook in hooks:
        hook.remove()


def pipeline(encoders: tuple[Any, Any], force_zeros: bool = True) -> StableDiffusionXLPipeline:
    """diffusers' pipeline with nothing in it but what encodes text."""
    return StableDiffusionXLPipeline(
        vae=None,
        text_encoder=encoders[0],
        text_encoder_2=encoders[1],
        tokenizer=CLIPTokenizer.from_pretrained(POCKET / "tokenizer"),
        tokenizer_2=CLIPTokenizer.from_pretrained(POCKET / "tokenizer_2"),
        unet=None,
        scheduler=None,
        force_zeros_for_empty_prompt=force_zeros,
        add_watermarker=False,
    )


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("negative", ["", "blurry, ugly"])
def test_embeddings_are_bit_for_bit_those_of_diffusers(
    encoding: TextEncoding, encoders: tuple[Any, Any], prompt: str, negative: str
) -> None:
    with torch.no_grad():
        theirs = pipeline(encoders).encode_prompt(prompt, negative_prompt=negative, device="cpu")
    ours = encoding.encode(prompt, ""), encoding.encode(negative, "")

    assert torch.equal(ours[0].hidden, theirs[0])
    assert torch.equal(ours[1].hidden, theirs[1])
    assert torch.equal(ours[0].pooled, theirs[2])
    assert torch.equal(ours[1].pooled, theirs[3])


@pytest.mark.parametrize("force_zeros", [True, False])
def test_an_absent_negative_is_zeros_or_the_empty_text(
    encoding: TextEncoding, encoders: tuple[Any, Any], force_zeros: bool
) -> None:
    with torch.no_grad():
        theirs = pipeline(encoders, force_zeros).encode_prompt("a lamp", device="cpu")
    ours = encoding.zeros() if force_zeros else encoding.encode("", "")

    assert torch.equal(ours.hidden, theirs[1])
    assert torch.equal(ours.pooled, theirs[3])


def test_a_text_is_encoded_once_under_each_lora_set(
    encoding: TextEncoding, runs: list[int]
) -> None:
    first = encoding.encode("a lamp", "none")
    again = encoding.encode("a lamp", "none")
    encoding.encode("a lamp", "mara 0.8")
    encoding.encode("a lamp", "none")

    assert again is first
    assert runs == [2, 2]


def test_the_texts_used_longest_ago_are_forgotten(
    encoding: TextEncoding, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "REMEMBERED", 2)
    for text in ["negative", "one", "negative", "two", "negative", "one"]:
        encoding.encode(text, "")

    assert runs == [4, 4]


def test_an_embedding_needs_no_gradient(encoding: TextEncoding) -> None:
    embedding = encoding.encode("a lamp", "")

    assert not embedding.hidden.requires_grad
    assert not embedding.pooled.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_widths_may_differ_and_the_dtype_is_the_one_asked_for(dtype: torch.dtype) -> None:
    common = {"vocab_size": 1912, "num_hidden_layers": 2, "num_attention_heads": 2}
    common |= {"intermediate_size": 16, "bos_token_id": 1910, "eos_token_id": 1911}
    first = CLIPTextModel(CLIPTextConfig(hidden_size=8, **common))
    second = CLIPTextModelWithProjection(CLIPTextConfig(hidden_size=12, projection_dim=6, **common))
    encoding = TextEncoding(load_tokenizers(POCKET), (first.eval(), second.eval()), CPU, dtype)
    embeddings = encoding.encode("a lamp", ""), encoding.zeros()

    assert [(e.hidden.shape, e.pooled.shape) for e in embeddings] == [((1, 77, 20), (1, 6))] * 2
    assert {t.dtype for e in embeddings for t in (e.hidden, e.pooled)} == {dtype}
