"""On a GPU the engine draws what the CPU draws, without waiting, batch after batch."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drawings import (
    PROMPTS,
    batch,
    candidate,
    control,
    difference,
    draw,
    image,
    model_at,
    overflowing,
    shot,
    write_map,
)

from comicgen.diffusion.conditioning import Lane, stack
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.models import Components, load_controlnet, load_model
from comicgen.diffusion.prepared import Prepared
from comicgen.diffusion.sampling import Sampling, draw_noise, upload
from comicgen.diffusion.schedulers import SAMPLERS, schedule
from comicgen.diffusion.text import Embedding
from comicgen.engine import Note
from comicgen.environment import current
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.storyboard import Model, Panel

pytestmark = pytest.mark.gpu

SIZE = Size(256, 192)


@pytest.fixture(scope="module")
def half() -> Components:
    return load_model(MODEL, torch.device("cuda", 0), torch.float16)


@pytest.fixture(scope="module")
def engine(half: Components) -> DiffusionEngine:
    return DiffusionEngine(half)


@pytest.fixture(scope="module")
def exact() -> DiffusionEngine:
    return DiffusionEngine.open(model_at(MODEL), current("cuda", "fp32"))


def steady(**changes: Any) -> Panel:
    return shot(**{"size": SIZE, "negative": "blurry", **changes})


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_float16_on_the_gpu_draws_the_cpus_picture(
    sampler: str, engine: DiffusionEngine, pocket: Components
) -> None:
    """Mean difference under 2 of 255; another seed gives more than 5."""
    panel = steady(sampler=sampler)
    drawn, expected = image(engine, panel), image(DiffusionEngine(pocket), panel)

    assert difference(drawn, expected).mean < 2
    assert difference(image(engine, panel, seed=8), expected).mean > 5


def test_float32_on_the_gpu_is_closer_still(exact: DiffusionEngine, pocket: Components) -> None:
    drawn = image(exact, steady())

    assert difference(drawn, image(DiffusionEngine(pocket), steady())).mean < 0.1


def test_bfloat16_on_the_gpu_draws_the_cpus_picture(pocket: Components) -> None:
    """It keeps 8 bits of 24: mean difference under 4 of 255, and not the seed of another."""
    model = model_at(MODEL)
    drawn = image(DiffusionEngine.open(model, current("cuda", "bf16")), steady())

    assert difference(drawn, image(DiffusionEngine(pocket), steady())).mean < 4


def prepared(model: Components, denoiser: Denoiser, controlled: bool) -> Prepared:
    width = model.unet.config.cross_attention_dim
    text = Embedding(
        torch.randn((1, 77, width)).to(model.device, model.dtype),
        torch.randn((1, model.text_encoder_2.config.projection_dim)).to(model.device, model.dtype),
    )
    picture = torch.rand((1, 3, SIZE.height, SIZE.width)) if controlled else None
    lanes = [Lane(text, text, 5.0, picture, 0.7) for _ in range(2)]
    return denoiser.prepare(stack(lanes, SIZE, guided=True))


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_loop_never_waits_for_the_gpu(
    sampler: str, controlled: bool, half: Components, controlnet: Model
) -> None:
    network = load_controlnet(controlnet.folder, half) if controlled else None
    denoiser = Denoiser(half.unet, network)
    conditioning = prepared(half, denoiser, controlled)
    draws = 9 if SAMPLERS[sampler].noisy else 1
    noise = draw_noise([1, 2], (4, SIZE.height // 8, SIZE.width // 8), draws)
    scheduler = schedule(sampler, half.folder.schedule, 8)
    with torch.inference_mode():  # in which operations are seen to agree, once
        denoiser.predict(noise[0].to(half.device), torch.ones(2, device=half.device), conditioning)
    torch.cuda.synchronize()

    with waiting_is_an_error(), torch.inference_mode():
        latents = Sampling(
            lambda latents, timestep, _: denoiser.predict(latents, timestep, conditioning),
            scheduler,
            upload(noise, half.device),
        ).take()

    assert torch.isfinite(latents).all()


@pytest.mark.parametrize("sampler", ["euler a", "unipc"])
def test_a_mixed_batch_draws_what_its_candidates_draw_alone(
    sampler: str, exact: DiffusionEngine, controlnet: Model, tmp_path: Path
) -> None:
    """Mean difference under 0.1 of 255 in float32: kernels differ with the batch."""
    panels = [
        steady(
            id=f"p{i}",
            sampler=sampler,
            prompt=PROMPTS[i],
            guidance=3.0 + i,
            control=control(
                controlnet, write_map(tmp_path / f"{i}.png", SIZE, 20 * i), weight=0.3 * i
            ),
        )
        for i in range(4)
    ]
    together = draw(exact, *(candidate(panel, seed) for seed, panel in enumerate(panels))).images

    for seed, (panel, drawn) in enumerate(zip(panels, together, strict=True)):
        assert difference(drawn, image(exact, panel, seed)).mean < 0.1


def test_the_same_batch_gives_the_same_bits(engine: DiffusionEngine) -> None:
    lanes = [candidate(steady(sampler="euler a", prompt=PROMPTS[i]), i) for i in range(4)]
    first, second = draw(engine, *lanes).images, draw(engine, *lanes).images

    assert [difference(*pair).largest for pair in zip(first, second, strict=True)] == [0] * 4


def test_a_vae_that_overflows_decodes_again(half: Components, engine: DiffusionEngine) -> None:
    wide = load_model(MODEL, half.device, torch.float32).vae
    weak = DiffusionEngine(replace(half, vae=overflowing(wide).half()))
    [drawn] = draw(weak, candidate(steady())).drawn

    assert drawn.notes == ("the VAE overflowed in float16; decoded again in float32",)
    assert difference(drawn.image, image(engine, steady())).mean < 0.5


def test_memory_that_runs_out_costs_one_batch(engine: DiffusionEngine) -> None:
    before = image(engine, steady())
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 100 * 2**20) / total)
    try:
        large = steady(size=Size(2048, 2048), steps=2)
        results = draw(engine, *(candidate(large, seed) for seed in range(4)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert [failed.reason.partition(" on ")[0] for failed in results.failed] == [
        "out of memory"
    ] * 4
    assert difference(image(engine, steady()), before).largest == 0


def test_a_device_that_is_lost_ends_the_run() -> None:
    """In a process of its own, which cannot use its GPU any more afterwards."""
    script = """
import torch
from drawings import candidate, draw, model_at, shot
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.environment import current
from comicgen.errors import DeviceLost
from comicgen.pocket import MODEL
from comicgen.storyboard import Model

engine = DiffusionEngine.open(model_at(MODEL), current("cuda", None))
assert not draw(engine, candidate(shot())).failed
decoder = engine._model.vae.decoder
decoder.register_forward_pre_hook(lambda *_: torch._assert_async(torch.zeros(1, device="cuda")))
try:
    draw(engine, candidate(shot()))
except DeviceLost as error:
    print("lost:", error, flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "lost: cuda:0 does not answer any more" in ended.stdout, ended.stderr


def test_the_last_batch_tells_the_peak_memory(engine: DiffusionEngine) -> None:
    first, last = batch(candidate(steady())), batch(candidate(steady()))
    early = [event for event in engine.draw(first, [last]) if isinstance(event, Note)]
    late = [event.text for event in engine.draw(last, []) if isinstance(event, Note)]

    assert early == []
    assert [text.partition(" ")[0] for text in late] == ["attention", "peak"]
    assert torch.cuda.get_device_name(0) in late[1]
