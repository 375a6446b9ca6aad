"""Fused networks draw what diffusers' draw, with the same parameters under the same names.

On a CPU their operations are the references of the kernels; `test_gpu_fused` has the kernels.
"""

import copy
from itertools import cycle
from typing import Any

import full_size
import pytest
import torch
from diffusers import ControlNetModel
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from drawings import write_controlnet
from lora_files import Recipe, lora_at, write_peft
from test_lean import WIDER, gap, noise

from comicgen.diffusion import fused_operations
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.fused import SMALLER, fuse, fuse_decoder, text_keys
from comicgen.diffusion.fused_check import wrong_operations
from comicgen.diffusion.fused_modules import ResnetBlock
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.models import Components
from comicgen.errors import NumericsError


def fused_copy(network: Any) -> Any:
    other = copy.deepcopy(network)
    fuse(other)
    return other


@torch.inference_mode()
def prediction(unet: Any, height: int = 12, width: int = 16, controlnet: Any = None) -> Any:
    """Of two rows, perhaps beside a ControlNet."""
    dtype, config = unet.dtype, unet.config
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    hidden = noise(2, 77, config.cross_attention_dim, dtype=dtype)
    added = {
        "text_embeds": noise(2, pooled, dtype=dtype),
        "time_ids": torch.full((2, 6), 128.0),
    }
    latents = noise(2, 4, height, width, dtype=dtype)
    residuals: dict[str, Any] = {}
    if controlnet is not None:
        image = noise(2, 3, 8 * height, 8 * width, dtype=dtype)
        down, middle = controlnet(
            latents,
            torch.full((2,), 500.0),
            text_keys(controlnet, hidden),
            image,
            added_cond_kwargs=added,
            return_dict=False,
        )
        residuals = {
            "down_block_additional_residuals": down,
            "mid_block_additional_residual": middle,
        }
    return unet(
        latents,
        torch.full((2,), 500.0),
        text_keys(unet, hidden),
        added_cond_kwargs=added,
        return_dict=False,
        **residuals,
    )[0]


@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize(("height", "width"), [(12, 16), (13, 18)])
def test_a_fused_unet_predicts_the_same(
    height: int, width: int, dtype: torch.dtype, pocket: Components
) -> None:
    """Also in a size that does not halve evenly."""
    plain = copy.deepcopy(pocket.unet).to(dtype)
    expected = prediction(plain, height, width)

    assert gap(prediction(fused_copy(plain), height, width), expected) < WIDER[dtype]


def test_a_fused_controlnet_steers_the_same(pocket: Components, tmp_path: Any) -> None:
    written = write_controlnet(tmp_path, pocket)
    plain: Any = ControlNetModel.from_pretrained(written.folder).eval()
    expected = prediction(pocket.unet, controlnet=plain)
    found = prediction(fused_copy(pocket.unet), controlnet=fused_copy(plain))

    assert gap(found, expected) < 1e-5
    assert gap(expected, prediction(pocket.unet)) > 1e-2


def test_parameters_keep_their_names_and_values(pocket: Components) -> None:
    plain, fused = pocket.unet, fused_copy(pocket.unet)
    own = dict(fused.named_parameters())

    assert own.keys() == dict(plain.named_parameters()).keys()
    assert all(torch.equal(own[name], each) for name, each in plain.named_parameters())


def test_the_whole_of_sdxl_is_fused() -> None:
    """No block is left of the kinds that there are fused ones for."""
    meta = torch.device("meta")
    network = full_size.unet(meta)
    fuse(network)
    left = [
        each for each in network.modules() if type(each) in (ResnetBlock2D, BasicTransformerBlock)
    ]
    vae = full_size.vae(meta)
    fuse_decoder(vae)
    left += [each for each in vae.decoder.modules() if type(each) is ResnetBlock2D]

    assert left == []
    assert network.text_keys.width == 2 * (10 * 640 + 60 * 1280)


def test_what_is_not_known_is_left_alone(pocket: Components) -> None:
    """A block of another kind is not taken for one that there is a fused one for."""
    block = ResnetBlock2D(
        in_channels=32, out_channels=32, temb_channels=8, time_embedding_norm="scale_shift"
    )
    holder = torch.nn.ModuleList([block])
    fuse(holder)

    assert holder[0] is block
    assert not ResnetBlock.stands_for(block)


def test_a_lora_reaches_weights_that_lie_side_by_side(pocket: Components, tmp_path: Any) -> None:
    """Queries, keys and values of fused attention are one tensor, and texts' keys another."""
    file = write_peft(tmp_path / "some.safetensors", pocket.folder, Recipe(components=("unet",)))
    found = []
    for network in (copy.deepcopy(pocket.unet), fused_copy(pocket.unet)):
        before = prediction(network)
        weights = LoraWeights({"unet": network}, pocket.folder)
        weights.set([lora_at(file, 2.0)])
        changed = prediction(network)
        assert gap(changed, before) > 1e-2
        found.append(changed)
        weights.set([])
        assert torch.equal(prediction(network), before)

    assert gap(found[1], found[0]) < 1e-5


def test_texts_are_read_once_a_batch(pocket: Components) -> None:
    """What a step reads are keys and values; without a fused network the hidden states."""
    hidden = noise(2, 77, pocket.unet.config.cross_attention_dim)
    fused = fused_copy(pocket.unet)

    assert text_keys(pocket.unet, hidden) is hidden
    assert text_keys(fused, hidden).shape == (2, 77, fused.text_keys.width)


def test_a_denoiser_of_fused_networks_predicts_the_same(pocket: Components, tmp_path: Any) -> None:
    from test_diffusion_denoiser import LATENTS, SIZE, TIMESTEP, lane

    from comicgen.diffusion.conditioning import stack

    written = write_controlnet(tmp_path, pocket)
    controlnet: Any = ControlNetModel.from_pretrained(written.folder).eval()
    conditioning = stack([lane(pocket, 0), lane(pocket, 1)], SIZE, guided=True)
    found = []
    for denoiser in (
        Denoiser(pocket.unet, controlnet),
        Denoiser(fused_copy(pocket.unet), fused_copy(controlnet)),
    ):
        with torch.inference_mode():
            prepared = denoiser.prepare(conditioning)
            found.append(denoiser.predict(LATENTS, TIMESTEP, prepared))

    assert gap(found[1], found[0]) < 1e-5


@torch.inference_mode()
def decoded(vae: Any) -> torch.Tensor:
    pixels: torch.Tensor = vae.decode(noise(1, 4, 6, 10, dtype=vae.dtype), return_dict=False)[0]
    return pixels


@pytest.mark.parametrize("dtype", WIDER)
def test_a_fused_vae_decodes_the_same_from_smaller_numbers(
    dtype: torch.dtype, pocket: Components
) -> None:
    plain = copy.deepcopy(pocket.vae).to(dtype)
    fused = copy.deepcopy(plain)
    fuse_decoder(fused)
    seen = {}
    for name, vae in (("plain", plain), ("fused", fused)):
        block = vae.decoder.up_blocks[-1].resnets[-1]

        def see(module: Any, inputs: Any, output: torch.Tensor, name: str = name) -> None:
            seen[name] = output

        block.register_forward_hook(see)

    assert gap(decoded(fused), decoded(plain)) < WIDER[dtype]
    assert gap(seen["fused"], SMALLER * seen["plain"]) < WIDER[dtype]


def test_a_fused_vae_holds_numbers_that_float16_does_not(pocket: Components) -> None:
    loud = copy.deepcopy(pocket.vae)
    stream = loud.decoder.conv_in
    stream.weight.data.mul_(2.0**14)
    stream.bias.data.mul_(2.0**14)
    expected = decoded(loud)
    plain, fused = (copy.deepcopy(loud).half() for _ in range(2))
    fuse_decoder(fused)

    assert not decoded(plain).isfinite().all()
    assert gap(decoded(fused).float(), expected) < 1e-2


def test_a_vae_of_other_blocks_is_not_fused(pocket: Components) -> None:
    """Its numbers would not be what they stand for."""
    other = copy.deepcopy(pocket.vae)
    for block in other.decoder.modules():
        if isinstance(block, ResnetBlock2D):
            block.nonlinearity = torch.nn.GELU()

    with pytest.raises(NumericsError, match="do not know the VAE's ResnetBlock2D"):
        fuse_decoder(other)


def test_a_fused_network_is_not_copied_cast_or_moved(pocket: Components) -> None:
    """Weights that lie side by side would part from the layers that a LoRA is written into."""
    fused = fused_copy(pocket.unet)

    for what in (copy.deepcopy, lambda network: network.half()):
        with pytest.raises(TypeError, match="a fused network cannot be"):
            what(fused)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operations_that_are_not_near_their_references_are_named(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, geglu = torch.device("cpu"), fused_operations.geglu
    assert wrong_operations(cpu, dtype) == []

    monkeypatch.setattr(
        fused_operations,
        "geglu",
        lambda x: geglu(x) if x.dtype == torch.float32 else 1.1 * geglu(x),
    )
    assert wrong_operations(cpu, dtype) == ["geglu"]


def test_operations_are_tried_while_libraries_read_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They change the type that torch gives numbers, in all threads and at any time."""
    types, usual = cycle([torch.float16, torch.float32]), torch.randn

    def meanwhile(*args: Any, **kwargs: Any) -> torch.Tensor:
        torch.set_default_dtype(next(types))
        return usual(*args, **kwargs)

    monkeypatch.setattr(torch, "randn", meanwhile)
    try:
        assert wrong_operations(torch.device("cpu"), torch.float16) == []
    finally:
        torch.set_default_dtype(torch.float32)
