"""The lean networks draw what diffusers' draw, with the same parameters in the same places."""

import copy
import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel
from diffusers.models.activations import GEGLU
from diffusers.models.attention import FeedForward
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from lora_files import Recipe, lora_at, write_peft

from comicgen.diffusion.lean import One, SplitGEGLU, lean, why_without_kernels
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.models import Components
from comicgen.diffusion.trial import why_not

WIDER = {torch.float32: 1e-5, torch.float64: 1e-13}
"""Relative difference that rounding makes in each dtype."""


def lean_copy(network: Any) -> Any:
    other = copy.deepcopy(network)
    lean(other)
    return other


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@torch.inference_mode()
def prediction(unet: Any) -> torch.Tensor:
    """Of two lanes in a size that is not square."""
    wide, dtype = unet.config.cross_attention_dim, unet.dtype
    pooled = unet.config.projection_class_embeddings_input_dim
    pooled -= 6 * unet.config.addition_time_embed_dim
    texts = {"text_embeds": noise(2, pooled, dtype=dtype), "time_ids": torch.full((2, 6), 128.0)}
    out: torch.Tensor = unet(
        noise(2, 4, 12, 16, dtype=dtype),
        torch.full((2,), 500.0),
        encoder_hidden_states=noise(2, 77, wide, dtype=dtype),
        added_cond_kwargs=texts,
        return_dict=False,
    )[0]
    return out


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", WIDER)
def test_a_lean_unet_predicts_the_same(dtype: torch.dtype, pocket: Components) -> None:
    plain = copy.deepcopy(pocket.unet).to(dtype)

    assert gap(prediction(lean_copy(plain)), prediction(plain)) < WIDER[dtype]


def _divisor(block: Any) -> Any:
    return getattr(block, "output_scale_factor", getattr(block, "rescale_output_factor", None))


def test_everything_in_a_unet_and_a_controlnet_that_can_be_is_lean(pocket: Components) -> None:
    networks = [pocket.unet, ControlNetModel.from_unet(pocket.unet)]
    for network in map(lean_copy, networks):
        blocks = [m for m in network.modules() if isinstance(m, Attention | ResnetBlock2D)]
        forwards = [module for module in network.modules() if isinstance(module, FeedForward)]

        assert blocks
        assert all(type(_divisor(each)) is One for each in blocks)
        assert forwards
        assert all(type(each.net[0]) is SplitGEGLU for each in forwards)


def test_parameters_keep_their_names_their_order_and_their_storage(pocket: Components) -> None:
    network = copy.deepcopy(pocket.unet)
    before = [(name, value.data_ptr()) for name, value in network.state_dict().items()]
    lean(network)

    assert [(name, value.data_ptr()) for name, value in network.state_dict().items()] == before


def test_a_network_may_be_made_lean_twice(pocket: Components) -> None:
    once = lean_copy(pocket.unet)

    assert torch.equal(prediction(lean_copy(once)), prediction(once))


def test_a_lora_written_in_place_afterwards_is_drawn_with(
    pocket: Components, tmp_path: Any
) -> None:
    lora = lora_at(write_peft(tmp_path / "style.safetensors", pocket.folder, Recipe()))
    plain = copy.deepcopy(pocket.unet)
    thin = lean_copy(plain)
    bare = prediction(thin)
    encoders = {
        name: copy.deepcopy(getattr(pocket, name)) for name in ("text_encoder", "text_encoder_2")
    }
    for unet in (plain, thin):
        LoraWeights({"unet": unet, **encoders}, pocket.folder).set([lora])

    assert gap(prediction(thin), bare) > 0.01
    assert gap(prediction(thin), prediction(plain)) < WIDER[torch.float32]


def test_a_lean_vae_decodes_to_the_same_bits(pocket: Components) -> None:
    thin, latents = lean_copy(pocket.vae), noise(1, 4, 8, 8)
    with torch.inference_mode():
        one, other = (vae.decode(latents, return_dict=False)[0] for vae in (thin, pocket.vae))

    assert torch.equal(one, other)


@pytest.mark.parametrize(("factor", "kind"), [(1.0, One), (1, One), (2.0, float)])
def test_only_divisors_of_one_are_left_out(factor: float, kind: type) -> None:
    layer = Attention(query_dim=16, heads=2, dim_head=8, rescale_output_factor=factor)
    rows = noise(1, 5, 16)
    expected = layer(rows)
    lean(layer)

    assert type(layer.rescale_output_factor) is kind
    assert torch.equal(layer(rows), expected)


@pytest.mark.parametrize("kind", ["gelu", "gelu-approximate", "linear-silu"])
def test_other_activations_are_left_alone(kind: str) -> None:
    forward = FeedForward(16, activation_fn=kind)
    former = forward.net[0]
    lean(forward)

    assert forward.net[0] is former


def test_a_gate_is_the_same_as_diffusers() -> None:
    rows = noise(3, 5, 16)
    with torch.inference_mode():
        plain = FeedForward(16).eval()
        expected = plain(rows)
        assert type(plain.net[0]) is GEGLU
        lean(plain)

        torch.testing.assert_close(plain(rows), expected)


def test_without_a_gpu_or_triton_torchs_kernels_are_left(
    pocket: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for own in ("kernels", "kernel_modules"):
        monkeypatch.delitem(sys.modules, f"comicgen.diffusion.{own}", raising=False)

    assert why_without_kernels(torch.device("cpu"), torch.float32) == "cpu is no GPU"
    why = why_without_kernels.__wrapped__(torch.device("cuda", 0), torch.float16)
    assert why.startswith("Triton does not work: ")
    assert not [
        m for m in lean_copy(pocket.vae).modules() if type(m).__module__.endswith("kernel_modules")
    ]


def test_memory_that_runs_out_says_nothing_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver does not say it as torch does."""

    def wrong() -> list[str]:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    with pytest.raises(RuntimeError, match="out of memory"):
        why_not(torch.device("cuda", 0), wrong, "would be wrong")
