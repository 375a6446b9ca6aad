"""Full-size SDXL with ControlNet is drawn as diffusers draws it.

The same is asked of the embedded model on a CPU, with tighter bounds.
"""

from collections.abc import Iterator
from dataclasses import asdict
from math import hypot

import figures
import full_size
import pytest
import torch
from bench_parts.replays import Desk
from beside_diffusers import Job, Networks, compare, influence, weak
from torch import Tensor

from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.models import Components, load_controlnet
from comicgen.diffusion.precision import exact_convolutions
from comicgen.sizes import Size
from comicgen.storyboard import Model

TALL = Size(832, 1216)
TINY = Size(96, 64)

MARGIN = 2.5
"""How much further than theirs our latents may be from those in the wide type on a CPU.

Batches of four and of one round the same computation differently, so of each lane either may be
nearer by chance.
"""


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Without gradients; convolutions in float32 are not rounded to TF32."""
    with torch.inference_mode(), exact_convolutions():
        yield


@pytest.fixture(scope="module")
def wide() -> Networks:
    """In float32."""
    unet = full_size.unet(torch.device("cuda", 0))
    return Networks(unet, full_size.controlnet(unet))


@pytest.fixture(scope="module")
def half(wide: Networks) -> Networks:
    return wide.to(torch.float16)


@pytest.fixture(scope="module")
def small(pocket: Components, controlnet: Model) -> Networks:
    """The embedded model's, in float32."""
    return Networks(pocket.unet, load_controlnet(controlnet.folder, pocket))


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_full_size_is_drawn_as_diffusers_draws_it(
    fused: bool, half: Networks, wide: Networks
) -> None:
    agreement = compare(half, wide, Job(TALL, steps=20), fused)
    figures.record(f"full-size-agreement{'-fused' * fused}", agreement.figures())

    assert agreement.branches.max() < 5e-3
    assert (agreement.ours_from_wide <= agreement.theirs_from_wide).all()
    own, theirs = together(agreement.ours_from_wide), together(agreement.theirs_from_wide)
    assert together(agreement.ours_from_theirs) <= hypot(own, theirs)


def together(gaps: Tensor) -> float:
    """The distance of all lanes; of a single one, two roundings differ by chance.

    Even exact latents would be as far from theirs as theirs are from exact ones. Others that are
    rounded as well are further by their own roundings, which add up as chances do.
    """
    return float(gaps.square().mean().sqrt())


@pytest.mark.gpu
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_lean_modules_keep_the_bits(lanes: int, half: Networks) -> None:
    plain, leaner = Denoiser(half.unet, half.controlnet), half.denoiser()
    desk = Desk.beside(half.unet, half.controlnet)
    task = desk.task(Size(1024, 1024), lanes, True)
    inputs = task.inputs(task.latents, desk.timestep(task, 500.0))

    assert torch.equal(leaner.call(inputs), plain.call(inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_every_input_moves_the_full_size_latents_by_a_fifth(fused: bool, half: Networks) -> None:
    moved = influence(half, Job(TALL, steps=12), fused)
    figures.record(
        f"full-size-influence{'-fused' * fused}",
        {name: asdict(each) for name, each in moved.items()},
    )

    assert weak(moved, 0.2) == {}


@pytest.mark.parametrize("fused", [False, True])
def test_the_embedded_model_is_drawn_as_diffusers_draws_it(fused: bool, small: Networks) -> None:
    """Each side is some 3e-5 from float64 in the least lucky lane."""
    agreement = compare(small, small.to(torch.float64), Job(TINY, steps=4), fused)

    assert agreement.branches.max() < 1e-4
    assert (agreement.ours_from_wide <= MARGIN * agreement.theirs_from_wide).all()


@pytest.mark.parametrize("fused", [False, True])
def test_every_input_moves_the_embedded_models_latents(fused: bool, small: Networks) -> None:
    """By far more than the two sides may differ."""
    assert weak(influence(small, Job(TINY, steps=4), fused), 0.01) == {}
