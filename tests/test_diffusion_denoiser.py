"""One step of denoising depends on every tensor that it is given, and on nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel
from drawings import write_controlnet

from comicgen.diffusion.conditioning import Lane, empty_lane, stack
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.models import Components
from comicgen.diffusion.prepared import Prepared
from comicgen.diffusion.text import Embedding
from comicgen.sizes import Size

SIZE = Size(128, 96)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def embedding(model: Components, seed: int) -> Embedding:
    width = model.unet.config.cross_attention_dim
    pooled = model.text_encoder_2.config.projection_dim
    return Embedding(noise(1, 77, width, seed=seed), noise(1, pooled, seed=seed))


def lane(model: Components, seed: int) -> Lane:
    image = noise(1, 3, SIZE.height, SIZE.width, seed=seed).clamp(0, 1)
    prompt, negative = embedding(model, seed), embedding(model, seed + 10)
    return Lane(prompt, negative, 2.0 + seed, image, 0.5 + seed)


@pytest.fixture(scope="module")
def denoiser(pocket: Components, tmp_path_factory: pytest.TempPathFactory) -> Denoiser:
    written = write_controlnet(tmp_path_factory.mktemp("controlnet"), pocket)
    return Denoiser(pocket.unet, ControlNetModel.from_pretrained(written.folder).eval())


@pytest.fixture(scope="module")
def prepared(pocket: Components, denoiser: Denoiser) -> Prepared:
    return denoiser.prepare(stack([lane(pocket, 0), lane(pocket, 1)], SIZE, guided=True))


LATENTS, TIMESTEP = noise(2, 4, 12, 16), torch.full((2,), 500.0)


@torch.inference_mode()
def predict(denoiser: Denoiser, prepared: Prepared) -> torch.Tensor:
    return denoiser.predict(LATENTS, TIMESTEP, prepared)


NEGATIVE, PROMPT, BOTH = slice(0, None, 2), slice(1, None, 2), slice(None)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("text", NEGATIVE),
        ("text", PROMPT),
        ("pooled", NEGATIVE),
        ("pooled", PROMPT),
        ("time_ids", BOTH),
        ("guidance", BOTH),
    ],
)
def test_every_conditioning_tensor_counts(
    name: str, rows: slice, denoiser: Denoiser, prepared: Prepared
) -> None:
    tensor = getattr(prepared, name).clone()
    tensor[rows] *= 1.5
    changed = replace(prepared, **{name: tensor})

    gap = (predict(denoiser, changed) - predict(denoiser, prepared)).abs().amax(dim=(1, 2, 3))
    assert (gap > 1e-4).all()


@pytest.mark.parametrize("name", ["control_hint", "control_weight"])
def test_every_control_tensor_counts(name: str, denoiser: Denoiser, prepared: Prepared) -> None:
    changed = predict(denoiser, replace(prepared, **{name: getattr(prepared, name) * 0.5}))
    gap = (changed - predict(denoiser, prepared)).abs().amax(dim=(1, 2, 3))
    assert (gap > 1e-4).all()


@torch.inference_mode()
def test_latents_and_timestep_count(denoiser: Denoiser, prepared: Prepared) -> None:
    before = denoiser.predict(LATENTS, TIMESTEP, prepared)
    moved = denoiser.predict(LATENTS * 1.1, TIMESTEP, prepared)
    later = denoiser.predict(LATENTS, TIMESTEP - 100, prepared)

    assert (moved - before).abs().max() > 1e-3
    assert (later - before).abs().max() > 1e-3


def test_a_lane_does_not_feel_its_neighbour(pocket: Components, denoiser: Denoiser) -> None:
    lanes = [lane(pocket, 0), lane(pocket, 1)]
    empty = empty_lane(embedding(pocket, 5), SIZE, controlled=True)
    both = predict(denoiser, denoiser.prepare(stack(lanes, SIZE, guided=True)))
    padded = predict(denoiser, denoiser.prepare(stack([lanes[0], empty], SIZE, guided=True)))

    torch.testing.assert_close(both[0], padded[0])


def test_names_lead_back_to_the_same_tensors(prepared: Prepared) -> None:
    named = prepared.named()

    assert Prepared.of(named) == prepared
    assert set(prepared.without_control().named()) == set(named) - {
        "control_text",
        "control_hint",
        "control_weight",
    }


def test_zero_weight_is_no_control(denoiser: Denoiser, prepared: Prepared) -> None:
    assert prepared.control_weight is not None
    off = torch.zeros_like(prepared.control_weight)

    silent = predict(denoiser, replace(prepared, control_weight=off))
    torch.testing.assert_close(silent, predict(denoiser, prepared.without_control()))


def test_guidance_of_one_is_the_prompt_alone(pocket: Components, denoiser: Denoiser) -> None:
    lanes: list[Any] = [replace(lane(pocket, seed), guidance=1.0) for seed in (0, 1)]
    guided = predict(denoiser, denoiser.prepare(stack(lanes, SIZE, guided=True)))
    unguided = predict(denoiser, denoiser.prepare(stack(lanes, SIZE, guided=False)))

    torch.testing.assert_close(guided, unguided, atol=1e-4, rtol=1e-4)


def test_sizes_are_told_height_first(pocket: Components) -> None:
    ids = stack([lane(pocket, 0)], SIZE, guided=False).time_ids

    assert ids.tolist() == [[96.0, 128.0, 0.0, 0.0, 96.0, 128.0]]
