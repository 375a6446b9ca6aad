"""A graph belongs to its device: on the second GPU of a machine it gives what the first gives."""

from pathlib import Path

import full_size
import pytest
import torch
from bench_parts.replays import Desk
from drawings import control, difference, draw, model_at, write_map
from test_gpu_engine_graphs import lanes

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.lean import lean
from comicgen.engine import GraphOptions
from comicgen.environment import current
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.storyboard import Model

pytestmark = [pytest.mark.gpu, pytest.mark.gpus(2)]

SIZES = (Size(1024, 1024), Size(832, 1216))


def test_pictures_of_the_second_gpu_are_the_firsts(controlnet: Model, tmp_path: Path) -> None:
    hint = control(controlnet, write_map(tmp_path / "map.png", Size(256, 192)))
    four = lanes(4, size=Size(256, 192), control=hint)
    model = model_at(MODEL)
    drawn = []
    for device in ("cuda:0", "cuda:1"):
        engine = DiffusionEngine.open(model, current(device, "fp16"), GraphOptions())
        drawn.append(draw(engine, *four).images)
        assert len(engine._painter.graphs.keys) == 2
        assert {weight.device for weight in engine._model.unet.parameters()} == {
            torch.device(device)
        }

    assert [difference(*pair).largest for pair in zip(*drawn, strict=True)] == [0] * 4
    assert torch.cuda.current_device() == 0


def test_full_size_graphs_of_the_second_gpu_give_the_firsts_bits() -> None:
    unet = full_size.unet(torch.device("cuda", 0)).half()
    controlnet = full_size.controlnet(unet)
    results = []
    for device in (0, 1):
        unet, controlnet = unet.to(device), controlnet.to(device)
        lean(unet)
        lean(controlnet)
        desk = Desk.beside(unet, controlnet)
        with desk.working():
            tasks = [desk.task(size, 4, True) for size in SIZES]
            replayed = [desk.replayed(task) for task in tasks]
            eager = [desk.eager(task) for task in tasks]
            assert all(torch.equal(*pair) for pair in zip(replayed, eager, strict=True))
            results.append([each.cpu() for each in replayed])
            assert len(desk.cache.keys) == 2
            desk.cache.clear()

    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
