"""The samplers' schedules and steps are diffusers' own, made not to wait for the device."""

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
from comicgen.diffusion.sampling import draw_noise, sample
from comicgen.diffusion.schedulers import SAMPLERS, schedule
from comicgen.storyboard import samplers

ORIGINALS = {
    "euler": EulerDiscreteScheduler,
    "euler a": EulerAncestralDiscreteScheduler,
    "dpm++ 2m": DPMSolverMultistepScheduler,
    "dpm++ 2m karras": DPMSolverMultistepScheduler,
    "ddim": DDIMScheduler,
    "unipc": UniPCMultistepScheduler,
}
SHAPE = (4, 6, 5)


def network(latents: torch.Tensor, timestep: torch.Tensor, step: int = 0) -> torch.Tensor:
    """Stands for a UNet: depends on latents and timestep, and bends."""
    return torch.tanh(latents * 1.3) + 0.1 * torch.sin(timestep / 100)


def as_diffusers_loops(sampler: str, config: dict[str, object], steps: int) -> torch.Tensor:
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


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("steps", [1, 2, 8, 20])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_latents_are_those_of_diffusers_scheduler(
    sampler: str, steps: int, prediction: str, pocket: Components
) -> None:
    config = {**pocket.scheduler_config, "prediction_type": prediction}
    scheduler = schedule(sampler, config, steps)
    original = dict(config, use_karras_sigmas=sampler.endswith("karras"))
    noise = draw_noise([3], SHAPE, 1 + steps if SAMPLERS[sampler].noisy else 1)

    latents = sample(network, scheduler, noise)

    torch.testing.assert_close(
        latents, as_diffusers_loops(sampler, original, steps), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if SAMPLERS[name].settings])
def test_schedules_keep_the_settings_that_sdxl_was_published_with(
    sampler: str, pocket: Components
) -> None:
    """However the model's own scheduler was set, a sampler's name says what is drawn."""
    odd = {"use_karras_sigmas": True, "algorithm_type": "sde-dpmsolver++", "solver_order": 3}
    odd |= {"clip_sample": True, "set_alpha_to_one": True, "final_sigmas_type": "sigma_min"}
    scheduler = schedule(sampler, {**pocket.scheduler_config, **odd}, 8)

    spoilt = {
        name: scheduler.config[name]
        for name, wanted in SAMPLERS[sampler].settings.items()
        if scheduler.config[name] != wanted
    }
    assert spoilt == {}


def test_golden_schedules(pocket: Components) -> None:
    """Eight steps with leading spacing and an offset of 1; Karras spaces by sigma^(1/7)."""
    timesteps = {
        name: schedule(name, pocket.scheduler_config, 8).timesteps.tolist() for name in SAMPLERS
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
        sample(network, schedule("unipc", pocket.scheduler_config, 8), noise) for _ in range(2)
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
