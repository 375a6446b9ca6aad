"""One bad candidate never costs another, and a picture depends on its own inputs only."""

import itertools
import shutil
import socket
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from diffusers import ControlNetModel
from drawings import (
    PROMPTS,
    assert_same,
    batch,
    candidate,
    control,
    controlnet_at,
    difference,
    draw,
    image,
    model_at,
    overflowing,
    shot,
    write_controlnet,
    write_map,
)
from lora_files import Recipe, lora_at, write_peft

from comicgen.diffusion import engine as drawing
from comicgen.diffusion import lora, reading
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.models import Components
from comicgen.environment import current
from comicgen.errors import InputError, MachineError, NumericsError
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.storyboard import Model, Panel

TINY = Size(64, 64)


def quick(**changes: Any) -> Panel:
    return shot(**{"size": TINY, "steps": 3, **changes})


def test_not_a_number_in_one_lane_costs_only_its_candidate(engine: DiffusionEngine) -> None:
    panels = [quick(id=f"p{i}", prompt=PROMPTS[i]) for i in range(3)]
    panels[1] = replace(panels[1], guidance=float("inf"))
    results = draw(engine, *(candidate(panel) for panel in panels))

    assert [each.candidate.name for each in results.drawn] == ["p0-c01", "p2-c01"]
    [failed] = results.failed
    assert failed.candidate.name == "p1-c01"
    assert failed.reason.startswith("nan: the latents")
    assert_same(results.drawn[1].image, image(engine, panels[2]))


def test_an_unreadable_control_image_costs_only_its_candidate(
    engine: DiffusionEngine, controlnet: Model, tmp_path: Path
) -> None:
    good = quick(control=control(controlnet, write_map(tmp_path / "good.png", TINY)))
    (tmp_path / "bad.png").write_text("no picture")
    bad = quick(id="p02", control=control(controlnet, tmp_path / "bad.png"))
    results = draw(engine, candidate(bad), candidate(good))

    assert_same(results.drawn[0].image, image(engine, good))
    [failed] = results.failed
    assert failed.candidate.name == "p02-c01"
    assert "bad.png" in failed.reason


def test_a_batch_without_any_readable_control_image_fails(
    engine: DiffusionEngine, controlnet: Model, tmp_path: Path
) -> None:
    panel = quick(control=control(controlnet, tmp_path / "missing.png"))
    results = draw(engine, candidate(panel, 1), candidate(panel, 2))

    assert (len(results.drawn), len(results.failed)) == (0, 2)


def test_a_broken_lora_fails_its_batch_and_leaves_no_trace(
    engine: DiffusionEngine, pocket: Components, tmp_path: Path
) -> None:
    plain = quick()
    before = image(engine, plain)
    file = write_peft(tmp_path / "cut.safetensors", pocket.folder)
    file.write_bytes(file.read_bytes()[:-100])
    panel = replace(plain, loras=(lora_at(file),))
    results = draw(engine, candidate(panel, 1), candidate(panel, 2))

    assert results.drawn == []
    assert ["cut.safetensors" in failed.reason for failed in results.failed] == [True, True]
    assert difference(image(engine, plain), before).largest == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"conditioning_embedding_out_channels": (8, 8)}, "size of tensor"),
        (
            {
                "conditioning_embedding_out_channels": (8, 8, 8, 8),
                "controlnet_conditioning_channel_order": "grb",
            },
            "unknown `controlnet_conditioning_channel_order`",
        ),
    ],
)
def test_a_network_that_cannot_run_fails_its_batch_only(
    settings: dict[str, Any], why: str, engine: DiffusionEngine, pocket: Components, tmp_path: Path
) -> None:
    """torch refuses to add what the first one makes; diffusers does not know the second's order."""
    network = ControlNetModel.from_unet(pocket.unet, **settings)
    network.save_pretrained(tmp_path / "odd")
    odd = controlnet_at(tmp_path / "odd", pocket)
    hint = control(odd, write_map(tmp_path / "map.png", TINY))
    results = draw(engine, candidate(quick(control=replace(hint, start=0.0, end=1.0))))

    [failed] = results.failed
    assert why in failed.reason
    assert draw(engine, candidate(quick())).failed == []


@pytest.mark.parametrize("where", [(lora, "load"), (reading, "draw_noise")])
def test_a_machine_without_memory_fails_its_batch_only(
    where: tuple[Any, str], engine: DiffusionEngine, pocket: Components, tmp_path: Path
) -> None:
    def full(*_: object) -> NoReturn:
        raise MemoryError

    style = lora_at(write_peft(tmp_path / "style.safetensors", pocket.folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*where, full)
        [failed] = draw(engine, candidate(quick(loras=(style,)))).failed

    assert "memory is full" in failed.reason
    assert draw(engine, candidate(quick(loras=(style,)))).failed == []


def test_a_file_replaced_during_the_run_is_not_drawn_under_its_old_name(
    engine: DiffusionEngine, controlnet: Model, pocket: Components, tmp_path: Path
) -> None:
    drawing = write_map(tmp_path / "map.png", TINY)
    other = write_controlnet(tmp_path / "other", pocket, strength=0.3)
    style = lora_at(write_peft(tmp_path / "style.safetensors", pocket.folder))
    panels = [
        quick(control=control(controlnet, drawing)),
        quick(control=control(other, write_map(tmp_path / "still.png", TINY))),
        quick(loras=(style,)),
    ]
    write_map(drawing, TINY, shift=5)
    write_controlnet(other.folder, pocket, strength=0.1)
    write_peft(style.file, pocket.folder, Recipe(seed=1))

    for panel, name in zip(panels, ("map.png", "other", "style.safetensors"), strict=True):
        [failed] = draw(engine, candidate(panel)).failed
        assert f"{name}: has changed since the storyboard was read" in failed.reason


def test_whatever_a_batch_asks_for_the_next_one_starts_anew(
    controlnet: Model, pocket: Components, tmp_path: Path
) -> None:
    """LoRA sets, with the texts encoded under them, ControlNets and failures come and go."""
    first, second = (
        lora_at(write_peft(tmp_path / f"{seed}.safetensors", pocket.folder, Recipe(seed=seed)))
        for seed in (1, 2)
    )
    other = write_controlnet(tmp_path / "other", pocket, strength=0.4)
    drawing = write_map(tmp_path / "map.png", TINY)
    failing = quick(control=control(controlnet, tmp_path / "gone.png"), loras=(second,))
    panels = [
        quick(),
        quick(loras=(first,)),
        quick(loras=(second,), control=control(other, drawing)),
        quick(loras=(first, replace(second, weight=-0.5))),
        quick(control=control(controlnet, drawing)),
    ]
    alone = [image(_fresh(), panel) for panel in panels]
    engine = _fresh()
    for place in (0, 1, 2, 1, 3, 4, 2, 0, 3, 1, 0):
        assert difference(image(engine, panels[place]), alone[place]).largest == 0
        assert draw(engine, candidate(failing)).drawn == []


def _fresh() -> DiffusionEngine:
    """An engine with networks of its own."""
    return DiffusionEngine.open(model_at(MODEL), current("cpu", None))


def test_company_changes_no_bit_of_a_lane(engine: DiffusionEngine) -> None:
    """Neither another picture beside it, nor an empty lane, nor one that is not a number."""
    panels = [quick(id=f"p{i}", prompt=PROMPTS[i], negative=PROMPTS[3], steps=2) for i in range(3)]
    full = [candidate(panel, seed) for seed, panel in enumerate(panels)]
    together = draw(engine, *full).images
    broken = candidate(replace(panels[0], guidance=float("inf")))

    for place, expected in enumerate(together):
        for company in (None, broken):
            lanes = [full[place] if i == place else company for i in range(3)]
            drawn = draw(engine, *lanes).drawn
            assert [difference(each.image, expected).largest for each in drawn] == [0]


def test_empty_lanes_change_nothing(
    engine: DiffusionEngine, controlnet: Model, tmp_path: Path
) -> None:
    hint = control(controlnet, write_map(tmp_path / "map.png", TINY))
    for panel in (quick(), quick(sampler="euler a", guidance=1.0), quick(control=hint)):
        results = draw(engine, None, candidate(panel), None)

        assert_same(results.images[0], image(engine, panel))


def test_lanes_keep_their_pictures_in_any_order(engine: DiffusionEngine) -> None:
    lanes = [candidate(quick(sampler="euler a", prompt=PROMPTS[i]), seed=i) for i in range(4)]
    forwards, backwards = draw(engine, *lanes).images, draw(engine, *lanes[::-1]).images

    for one, other in zip(forwards, backwards[::-1], strict=True):
        assert_same(one, other)
    assert difference(forwards[0], forwards[1]).mean > 10


def test_the_same_batch_gives_the_same_bits(engine: DiffusionEngine) -> None:
    one, other = (image(engine, quick(sampler="unipc")) for _ in range(2))

    assert difference(one, other).largest == 0


def test_an_empty_lane_has_its_share_of_the_time(
    engine: DiffusionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by 12 s each time it is read; decoding costs one candidate 12 s more."""
    monkeypatch.setattr(time, "perf_counter", itertools.count(0, 12).__next__)
    alone = draw(engine, candidate(quick())).drawn
    padded = draw(engine, candidate(quick()), None, None, None).drawn

    assert [each.seconds for each in alone] == [12 + 12]
    assert [each.seconds for each in padded] == [12 / 4 + 12]


def test_a_vae_that_overflows_is_told_of(pocket: Components) -> None:
    engine = DiffusionEngine(replace(pocket, vae=overflowing(pocket.vae).half()))
    [drawn] = draw(engine, candidate(quick())).drawn

    assert drawn.notes == ("the VAE overflowed in float16; decoded again in float32",)
    assert difference(drawn.image, image(DiffusionEngine(pocket), quick())).largest <= 3


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("_offline")
def test_nothing_is_asked_of_the_network() -> None:
    engine = DiffusionEngine.open(model_at(MODEL), current("cpu", None))

    assert draw(engine, candidate(quick())).failed == []


def test_nothing_is_left_switched_off_for_others(engine: DiffusionEngine) -> None:
    """Between two pictures the caller is not in inference mode."""
    events = engine.draw(batch(candidate(quick(), 1), candidate(quick(), 2)), ())
    modes = [torch.is_inference_mode_enabled() for _ in events]

    assert modes == [False, False]


def test_a_model_that_changed_since_the_storyboard_was_read_is_not_drawn_with(
    tmp_path: Path,
) -> None:
    copied = Path(shutil.copytree(MODEL, tmp_path / "model"))
    model = model_at(copied)
    weights = copied / "vae" / "diffusion_pytorch_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    with pytest.raises(InputError, match="has changed since the storyboard was read"):
        DiffusionEngine.open(model, current("cpu", None))


def opened_with(tried: Future[str], monkeypatch: pytest.MonkeyPatch) -> DiffusionEngine:
    """An engine with fused numerics, of which that was found out."""
    monkeypatch.setattr(drawing, "begin", lambda device, dtype: tried)
    return DiffusionEngine.open(model_at(MODEL), current("cpu", None).drawing("fused"))


def test_fused_numerics_that_do_not_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Future[str]()
    tried.set_result("Triton does not work: no compiler")
    with pytest.raises(NumericsError, match="Triton does not work: no compiler"):
        opened_with(tried, monkeypatch)
    fine = Future[str]()
    fine.set_result("")
    assert opened_with(fine, monkeypatch)._model.fused


@pytest.mark.parametrize(
    ("error", "said"),
    [("CUDA error: out of memory", "does not fit into"), ("unspecified", "cannot be used")],
)
def test_a_gpu_that_fails_while_kernels_are_tried_is_told_of(
    error: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Future[str]()
    tried.set_exception(RuntimeError(error))
    with pytest.raises(MachineError, match=said):
        opened_with(tried, monkeypatch)
