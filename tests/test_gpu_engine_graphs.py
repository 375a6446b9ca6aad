"""On a GPU the engine draws the same bits with graphs and without, and tells of its graphs."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drawings import PROMPTS, batch, candidate, control, difference, draw, shot, write_map
from lora_files import Recipe, lora_at, write_peft
from PIL import Image
from test_gpu_drawing import waiting_is_an_error

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.models import Components, load_model
from comicgen.diffusion.schedulers import SAMPLERS
from comicgen.engine import Drawn, GraphLabel, GraphOptions, Measured, Note
from comicgen.plan import Batch
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.storyboard import Model, Panel

pytestmark = pytest.mark.gpu

SIZES = (Size(256, 256), Size(320, 192), Size(192, 320), Size(256, 192), Size(192, 192))


def load() -> Components:
    return load_model(MODEL, torch.device("cuda", 0), torch.float16, fused=True)


@pytest.fixture(scope="module")
def eager() -> DiffusionEngine:
    return DiffusionEngine(load(), GraphOptions(enabled=False))


@pytest.fixture
def half() -> Components:
    """A model for one engine, which writes into its weights."""
    return load()


@pytest.fixture
def replaying(half: Components) -> DiffusionEngine:
    return DiffusionEngine(half, GraphOptions())


def lanes(count: int, **changes: Any) -> list[Any]:
    panels = [
        shot(id=f"p{i}", prompt=PROMPTS[i % 4], guidance=2.0 + i, **changes) for i in range(count)
    ]
    return [candidate(panel, seed) for seed, panel in enumerate(panels)]


def images(engine: DiffusionEngine, batches: Sequence[Batch]) -> list[Image.Image]:
    drawn: list[Any] = []
    for number, each in enumerate(batches, start=1):
        drawn += engine.draw(each, batches[number:])
    assert all(isinstance(event, Drawn | GraphLabel | Measured | Note) for event in drawn), drawn
    return [event.image for event in drawn if isinstance(event, Drawn)]


def assert_equal(one: Sequence[Image.Image], other: Sequence[Image.Image]) -> None:
    assert len(one) == len(other) > 0
    gaps = [difference(*pair).largest for pair in zip(one, other, strict=True)]
    assert gaps == [0] * len(one)


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_in_every_size_and_batch(
    sampler: str,
    controlled: bool,
    eager: DiffusionEngine,
    replaying: DiffusionEngine,
    controlnet: Model,
    tmp_path: Path,
) -> None:
    batches = []
    for size, count in zip(SIZES, (8, 4, 2, 1, 4), strict=True):
        hint = (
            control(controlnet, write_map(tmp_path / f"{size}.png", size)) if controlled else None
        )
        batches.append(batch(*lanes(count, size=size, sampler=sampler, control=hint)))

    assert_equal(images(replaying, batches), images(eager, batches))
    assert_equal(images(replaying, batches[::-1]), images(eager, batches[::-1]))
    assert len(replaying._painter.graphs.keys) == 5 * (1 + controlled)


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_three_in_a_bucket_of_four(
    guidance: float, eager: DiffusionEngine, replaying: DiffusionEngine
) -> None:
    three = lanes(3)
    if guidance == 1.0:
        three = [replace(each, panel=replace(each.panel, guidance=1.0)) for each in three]
    padded = batch(*three, None)

    assert len(images(replaying, [padded])) == 3
    assert_equal(images(replaying, [padded]), images(eager, [padded]))
    assert replaying._painter.graphs.keys[0].bucket.guided is (guidance > 1)


def test_whatever_a_panel_changes_is_seen_by_the_graph_of_another(
    eager: DiffusionEngine, replaying: DiffusionEngine, controlnet: Model, tmp_path: Path
) -> None:
    """Prompt, negative, guidance, seed, steps, sampler, control image and its weight."""
    first = control(controlnet, write_map(tmp_path / "first.png"), 0.7)
    other = control(controlnet, write_map(tmp_path / "other.png", shift=60), 0.7)
    usual = shot(control=first, negative="blurry")
    changed = [
        usual,
        replace(usual, prompt=PROMPTS[2]),
        replace(usual, negative="red"),
        replace(usual, guidance=8.0),
        replace(usual, steps=9),
        replace(usual, sampler="euler a"),
        replace(usual, control=other),
        replace(usual, control=replace(first, weight=0.3)),
        replace(usual, control=replace(first, start=0.0, end=0.5)),
    ]
    batches = [batch(candidate(panel)) for panel in [*changed, usual]]
    batches.append(batch(candidate(usual, seed=8)))
    drawn = images(replaying, batches)

    assert_equal(drawn, images(eager, batches))
    assert_equal(drawn[:1], drawn[-2:-1])
    assert all(difference(drawn[0], each).mean > 0.5 for each in drawn[1:-2] + drawn[-1:])
    assert len(replaying._painter.graphs.keys) == 2


def lora_panels(folder: Path, half: Components) -> tuple[Panel, Panel, Panel]:
    first = write_peft(folder / "a.safetensors", half.folder, Recipe(alpha=2.0, strength=1.0))
    other = write_peft(folder / "b.safetensors", half.folder, Recipe(strength=1.0, seed=1))
    plain = shot()
    return (
        plain,
        replace(plain, loras=(lora_at(first, 0.8),)),
        replace(plain, loras=(lora_at(other, 0.7), lora_at(first, -0.3))),
    )


def test_lora_sets_are_switched_under_live_graphs(
    eager: DiffusionEngine, replaying: DiffusionEngine, half: Components, tmp_path: Path
) -> None:
    plain, a, b = (batch(candidate(panel)) for panel in lora_panels(tmp_path, half))
    drawn = {
        name: images(replaying, [each]) for name, each in zip("pab", (plain, a, b), strict=True)
    }

    for name, each in zip("abpba", (a, b, plain, b, a), strict=True):
        again = images(replaying, [each])
        assert_equal(again, drawn[name])
        assert_equal(again, images(eager, [each]))
    assert difference(drawn["a"][0], drawn["b"][0]).mean > 1
    assert difference(drawn["a"][0], drawn["p"][0]).mean > 1
    assert len(replaying._painter.graphs.keys) == 1


def test_a_lora_that_cannot_be_read_leaves_the_graph_with_pristine_weights(
    eager: DiffusionEngine, replaying: DiffusionEngine, half: Components, tmp_path: Path
) -> None:
    plain, a, _ = lora_panels(tmp_path, half)
    before = images(replaying, [batch(candidate(plain))])
    a.loras[0].file.write_bytes(b"gone bad")
    results = draw(replaying, candidate(a))

    assert len(results.failed) == 1
    assert_equal(images(replaying, [batch(candidate(plain))]), before)
    assert len(replaying._painter.graphs.keys) == 1
    assert_equal(images(eager, [batch(candidate(plain))]), before)


def test_two_hundred_switches_leave_every_bit_and_every_place(
    replaying: DiffusionEngine, half: Components, tmp_path: Path
) -> None:
    plain, a, b = lora_panels(tmp_path, half)
    networks = (half.unet, half.text_encoder, half.text_encoder_2)
    weights = [weight for network in networks for weight in network.parameters()]
    places = [weight.data_ptr() for weight in weights]

    def bits(panel: Panel) -> list[torch.Tensor]:
        replaying._denoising._loras.set(panel.loras)
        return [weight.clone() for weight in weights]

    base, first = bits(plain), bits(a)
    for panel in [b, a, plain, a] * 50:
        replaying._denoising._loras.set(panel.loras)

    assert all(torch.equal(*pair) for pair in zip(bits(a), first, strict=True))
    assert all(torch.equal(*pair) for pair in zip(bits(plain), base, strict=True))
    assert [weight.data_ptr() for weight in weights] == places
    assert not all(torch.equal(*pair) for pair in zip(first, base, strict=True))


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_loop_of_replays_never_waits(
    sampler: str,
    controlled: bool,
    replaying: DiffusionEngine,
    monkeypatch: pytest.MonkeyPatch,
    controlnet: Model,
    tmp_path: Path,
) -> None:
    """With control for a part of the steps, two graphs take turns."""
    import comicgen.diffusion.painter as module

    hint = control(controlnet, write_map(tmp_path / "map.png")) if controlled else None
    four = batch(*lanes(4, sampler=sampler, steps=12, control=hint))
    first = images(replaying, [four])
    assert len(replaying._painter.graphs.keys) == 1 + controlled
    take = module.Sampling.take

    def strict(steps: Any, count: int | None = None) -> torch.Tensor:
        with waiting_is_an_error():
            return take(steps, count)

    monkeypatch.setattr(module.Sampling, "take", strict)

    assert_equal(images(replaying, [four]), first)


def test_labels_count_replays_and_tell_memory_and_seconds(replaying: DiffusionEngine) -> None:
    batches = [batch(*lanes(4)), batch(*lanes(2)), batch(*lanes(4))]
    told = [
        event
        for number, each in enumerate(batches, start=1)
        for event in replaying.draw(each, batches[number:])
        if isinstance(event, GraphLabel)
    ]

    last = {label.number: label for label in told}.values()  # some of it is done ahead
    assert told[0].replays == 5
    assert [(label.bucket, label.replays) for label in last] == [
        ("4 x 192x128", 13),
        ("2 x 192x128", 5),
    ]
    assert all(label.seconds > 0 and label.after >= label.before > 0 for label in told)
    assert told[0].attention in ("cudnn", "flash", "efficient")


def test_the_largest_graph_is_captured_first_and_the_commonest_when_asked(
    half: Components,
) -> None:
    engine = DiffusionEngine(half, GraphOptions(precapture=2))
    batches = [batch(*lanes(1)), batch(*lanes(8)), batch(*lanes(2)), batch(*lanes(2))]
    next(iter(engine.draw(batches[0], batches[1:])))

    assert [key.bucket.batch for key in engine._painter.graphs.keys] == [8, 2, 1]
    assert [key.bucket.batch for key in draw_first(half)._painter.graphs.keys] == [8, 1]


def draw_first(model: Components) -> DiffusionEngine:
    """An engine without options that drew the first of three batches."""
    engine = DiffusionEngine(model, GraphOptions())
    batches = [batch(*lanes(1)), batch(*lanes(8)), batch(*lanes(2))]
    next(iter(engine.draw(batches[0], batches[1:])))
    return engine


def test_debugging_compares_every_replay(half: Components, eager: DiffusionEngine) -> None:
    engine = DiffusionEngine(half, GraphOptions(debug=True))
    four = batch(*lanes(4))

    assert_equal(images(engine, [four]), images(eager, [four]))
    engine = DiffusionEngine(half, GraphOptions(debug=True))
    [label] = [event for event in engine.draw(four, ()) if isinstance(event, GraphLabel)]
    assert label.replays == 5


def test_five_hundred_pictures_leave_memory_flat(replaying: DiffusionEngine) -> None:
    batches = [batch(*lanes(count, size=size, steps=2)) for size in SIZES for count in (8, 4, 2, 1)]
    images(replaying, batches * 2)  # the second time round the last of them is captured
    assert len(replaying._painter.graphs.keys) == len(batches)
    memory = replaying._memory
    assert memory
    before, drawn = memory.held, 0
    while drawn < 500:
        drawn += len(images(replaying, batches))

    assert memory.held == before


def test_an_engine_that_is_gone_leaves_no_memory_behind() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    engine = DiffusionEngine(load(), GraphOptions())
    images(engine, [batch(*lanes(4))])
    assert len(engine._painter.graphs.keys) == 1
    assert torch.cuda.memory_allocated() > before
    del engine
    gc.collect()

    assert torch.cuda.memory_allocated() <= before + 64 * 2**20  # workspaces of libraries stay


def test_memory_that_graphs_hold_is_given_to_a_picture_that_needs_it(
    replaying: DiffusionEngine, eager: DiffusionEngine
) -> None:
    """The fraction leaves no room for decoding a picture beside the graphs of a large bucket."""
    large = batch(*lanes(8, size=Size(768, 768), steps=4))
    other = batch(*lanes(1, size=Size(512, 512), steps=4))
    expected = images(eager, [large, other])
    before = images(replaying, [large])
    memory = replaying._memory
    assert memory
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((memory.held + 4 * 2**20) / total)
    try:
        drawn = images(replaying, [other])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert_equal([*before, *drawn], expected)
    assert large.keys[0] not in replaying._painter.graphs.keys
    assert_equal(images(replaying, [large]), before)
