"""The samplers' schedules and steps are diffusers' own, made not to wait for the device."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from comicgen.diffusion.models import Components
from comicgen.diffusion.sampling import Sampling, draw_noise
from comicgen.diffusion.schedulers import SAMPLERS, schedule
from comicgen.pocket import MODEL
from comicgen.storyboard import samplers
from comicgen.weights.schedule import read_schedule

ORIGINALS = {
    "euler": EulerDiscreteScheduler,
    "euler a": EulerAncestralDiscreteScheduler,
    "dpm++ 2m": DPMSolverMultistepScheduler,
    "dpm++ 2m karras": DPMSolverMultistepScheduler,
    "ddim": DDIMScheduler,
    "unipc": UniPCMultistepScheduler,
}
CONFIG: dict[str, Any] = json.loads((MODEL / "scheduler/scheduler_config.json").read_text())
SHAPE = (4, 6, 5)


def network(latents: torch.Tensor, timestep: torch.Tensor, step: int = 0) -> torch.Tensor:
    """Stands for a UNet: depends on latents and timestep, and bends."""
    return torch.tanh(latents * 1.3) + 0.1 * torch.sin(timestep / 100)


def read(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What is read of a scheduler's config."""
    file = folder / "scheduler_config.json"
    file.write_text(json.dumps(config))
    return read_schedule(file)


def as_we_loop(sampler: str, training: dict[str, Any], steps: int) -> torch.Tensor:
    noise = draw_noise([3], SHAPE, 1 + steps if SAMPLERS[sampler].noisy else 1)
    return Sampling(network, schedule(sampler, training, steps), noise).take()


def as_diffusers_loops(sampler: str, config: dict[str, Any], steps: int) -> torch.Tensor:
    config = {**config, "use_karras_sigmas": sampler.endswith("karras")}
    scheduler = ORIGINALS[sampler].from_config(config)
    scheduler.set_timesteps(steps)
    generator = torch.Generator("cpu").manual_seed(3)
    latents = torch.randn((1, *SHAPE), generator=generator) * scheduler.init_noise_sigma
    noisy = {"generator": generator} if SAMPLERS[sampler].noisy else {}
    for timestep in scheduler.timesteps:
        prediction = network(scheduler.scale_model_input(latents, timestep), timestep)
        latents = scheduler.step(prediction, timestep, latents, **noisy).prev_sample
    return latents


def test_every_sampler_of_the_storyboard_can_be_drawn() -> None:
    assert set(samplers.SAMPLERS) == set(SAMPLERS)


TRAININGS = [
    {},
    {"prediction_type": "v_prediction"},
    {"timestep_spacing": "trailing", "steps_offset": 0},
    {"timestep_spacing": "linspace", "num_train_timesteps": 500},
]


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("steps", [1, 2, 8, 20])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_latents_are_those_of_diffusers_scheduler(
    sampler: str, steps: int, training: dict[str, Any], tmp_path: Path
) -> None:
    config = CONFIG | training
    latents = as_we_loop(sampler, read(tmp_path, config), steps)

    torch.testing.assert_close(
        latents, as_diffusers_loops(sampler, config, steps), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "dpm++ 2m karras"])
def test_a_model_trained_down_to_pure_noise_is_sampled_from_there(
    sampler: str, tmp_path: Path
) -> None:
    """diffusers' own Karras loop fails on such a model."""
    config = CONFIG | {"prediction_type": "v_prediction", "timestep_spacing": "trailing"}
    config |= {"rescale_betas_zero_snr": True}
    latents = as_we_loop(sampler, read(tmp_path, config), 8)

    torch.testing.assert_close(latents, as_diffusers_loops(sampler, config, 8))


LEFTOVERS = {
    "use_karras_sigmas": True,
    "use_beta_sigmas": True,
    "use_flow_sigmas": True,
    "use_lu_lambdas": True,
    "algorithm_type": "sde-dpmsolver++",
    "solver_order": 3,
    "final_sigmas_type": "sigma_min",
    "interpolation_type": "log_linear",
    "sigma_max": 80.0,
    "lambda_min_clipped": -1.0,
    "disable_corrector": [0, 1],
    "variance_type": "learned_range",
    "thresholding": True,
    "clip_sample": True,
    "set_alpha_to_one": True,
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_how_the_models_maker_liked_to_sample_changes_nothing(sampler: str, tmp_path: Path) -> None:
    """A sampler's name says what is drawn, with the settings that SDXL was published with."""
    plain = as_we_loop(sampler, read(tmp_path, CONFIG), 8)

    assert torch.equal(as_we_loop(sampler, read(tmp_path, CONFIG | LEFTOVERS), 8), plain)


def test_golden_schedules(pocket: Components) -> None:
    """Eight steps with leading spacing and an offset of 1; Karras spaces by sigma^(1/7)."""
    timesteps = {
        name: schedule(name, pocket.folder.schedule, 8).timesteps.tolist() for name in SAMPLERS
    }

    leading = [876, 751, 626, 501, 376, 251, 126, 1]
    multistep = [889, 778, 667, 556, 445, 334, 223, 112]
    assert timesteps == {
        "euler": leading,
        "euler a": leading,
        "dpm++ 2m": multistep,
        "dpm++ 2m karras": [999, 890, 746, 549, 299, 90, 12, 0],
        "ddim": leading,
        "unipc": multistep,
    }


def test_a_batch_gets_a_fresh_scheduler(pocket: Components) -> None:
    noise = draw_noise([3], SHAPE, 1)
    first, second = (
        Sampling(network, schedule("unipc", pocket.folder.schedule, 8), noise).take()
        for _ in range(2)
    )

    assert torch.equal(first, second)


def test_the_first_noise_of_a_seed_is_what_diffusers_draws() -> None:
    noise = draw_noise([5], SHAPE, 3)

    generator = torch.Generator("cpu").manual_seed(5)
    expected = [torch.randn((1, *SHAPE), generator=generator) for _ in range(3)]
    assert torch.equal(noise, torch.stack(expected))


def test_noise_depends_on_nothing_but_the_seed() -> None:
    seeds = [0, 1, 2**32 - 1, 7]
    together = draw_noise(seeds, SHAPE, 4)
    backwards = draw_noise(seeds[::-1], SHAPE, 4)

    alone = [draw_noise([seed], SHAPE, 4) for seed in seeds]
    assert torch.equal(together, torch.cat(alone, dim=1))
    assert torch.equal(backwards, together.flip(1))
