"""Latents become the pixels that diffusers makes of them, in a wider type where fp16 overflows."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from drawings import difference, overflowing
from PIL import Image

from comicgen.diffusion.decode import Decoder
from comicgen.diffusion.models import Components
from comicgen.errors import CandidateError


def some_latents() -> torch.Tensor:
    return 0.8 * torch.randn((1, 4, 4, 6), generator=torch.Generator().manual_seed(0))


def as_diffusers_decodes(vae: Any, latents: torch.Tensor) -> Image.Image:
    pixels = vae.decode(latents / vae.config.scaling_factor).sample
    return VaeImageProcessor(vae_scale_factor=8).postprocess(pixels.detach())[0]


@torch.inference_mode()
def test_pixels_are_diffusers(pocket: Components) -> None:
    decoded = Decoder(pocket.vae).decode(some_latents())

    expected = as_diffusers_decodes(pocket.vae, some_latents())
    assert np.array_equal(np.asarray(decoded.image), np.asarray(expected))
    assert decoded.notes == ()


@torch.inference_mode()
def test_means_and_deviations_of_latents_are_undone(pocket: Components) -> None:
    vae = copy.deepcopy(pocket.vae)
    mean, std = torch.tensor([0.1, -0.2, 0.3, 0.0]), torch.tensor([0.9, 1.1, 1.2, 0.8])
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    decoded = Decoder(vae).decode(some_latents())

    shaped = some_latents() * std.view(1, 4, 1, 1)
    shaped = shaped + mean.view(1, 4, 1, 1) * vae.config.scaling_factor
    assert difference(decoded.image, as_diffusers_decodes(pocket.vae, shaped)).largest <= 1


@torch.inference_mode()
def test_a_vae_that_overflows_in_float16_decodes_again_in_float32(pocket: Components) -> None:
    expected = Decoder(pocket.vae).decode(some_latents()).image
    vae = overflowing(pocket.vae).half()
    decoder = Decoder(vae)
    first, second = decoder.decode(some_latents()), decoder.decode(some_latents())

    assert difference(first.image, expected).largest <= 3
    assert difference(first.image, second.image).largest == 0
    assert first.notes == ("the VAE overflowed in float16; decoded again in float32",)
    assert vae.dtype == torch.float16


@torch.inference_mode()
def test_pixels_that_are_never_finite_are_refused(pocket: Components) -> None:
    vae = copy.deepcopy(pocket.vae)
    vae.decoder.conv_out.bias.fill_(float("inf"))

    for broken in (vae, copy.deepcopy(vae).half()):
        with pytest.raises(CandidateError, match="nan: the VAE"):
            Decoder(broken).decode(some_latents())


@torch.inference_mode()
def test_latents_that_are_not_finite_are_refused(pocket: Components) -> None:
    latents = some_latents()
    latents[0, 2, 3, 3] = float("nan")

    with pytest.raises(CandidateError, match="nan: the latents"):
        Decoder(pocket.vae).decode(latents)
