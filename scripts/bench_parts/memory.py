"""How much of a GPU's memory graphs take, and whether many pictures take more than a few."""

import gc
from dataclasses import dataclass, replace
from typing import Any

from bench_parts import ours, stories
from bench_parts.replays import Desk
from bench_parts.setting import Setting, say
from bench_parts.timing import judged
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.memory import Memory
from comicgen.diffusion.models import load_controlnet, load_model
from comicgen.sizes import Size

FLOOR = 1.2
"""How many times as much as the largest graph alone all of them may take."""

SIZES = (Size(1024, 1024), Size(832, 1216), Size(1216, 832), Size(1344, 768), Size(768, 1344))
BATCHES = (8, 4, 2, 1)
PICTURES, STEPS = 500, 2


@dataclass(frozen=True)
class Taken:
    """Bytes that graphs take: of torch's memory, and of the device's, the driver's included."""

    torch: int
    device: int

    def gib(self) -> dict[str, float]:
        return {"torch": round(self.torch / 2**30, 3), "device": round(self.device / 2**30, 3)}


def measure(setting: Setting) -> dict[str, Any]:
    """The graphs of all sizes and batches, without and with a ControlNet; then 500 pictures."""
    return {**_graphs(setting), "500 pictures of two steps": _many_pictures(setting)}


def alone_and_all(desk: Desk, controlled: bool) -> tuple[Taken, Taken]:
    """What the largest graph takes alone, and all of five sizes and four batches together."""

    def taken(tasks: list[Task]) -> Taken:
        desk.cache.clear()
        gc.collect()
        held, free = desk.memory.held, desk.memory.free
        for task in tasks:
            desk.cache.capture(task)
        return Taken(desk.memory.held - held, free - desk.memory.free)

    kinds = sorted(
        ((size, batch) for size in SIZES for batch in BATCHES),
        key=lambda kind: -kind[1] * kind[0].width * kind[0].height,
    )
    tasks = [desk.task(*kind, controlled) for kind in kinds]
    taken(tasks[:1])  # what the driver keeps of kernels that it meets for the first time
    return taken(tasks[:1]), taken(tasks)


def _graphs(setting: Setting) -> dict[str, Any]:
    parts, fused = setting.parts, setting.environment.kind == "fused"
    model = load_model(parts.model, setting.device, setting.dtype, fused)
    desk = Desk.beside(model.unet, load_controlnet(parts.controlnet, model))
    told = {}
    with desk.working():
        for name, controlled in (("graphs", False), ("graphs with a ControlNet", True)):
            alone, every = alone_and_all(desk, controlled)
            number = len(desk.cache.keys)
            desk.cache.clear()
            ratio = every.device / alone.device
            say(f"memory   {number} {name} / the largest alone {ratio:.3f}, at most {FLOOR}")
            told[name] = {
                "number": number,
                "largest alone, GiB": alone.gib(),
                "all, GiB": every.gib(),
                "all / largest alone": judged(ratio, FLOOR, most=True),
            }
    return told


def _many_pictures(setting: Setting) -> dict[str, Any]:
    engine = ours.open_engine(stories.one_panel(setting, 1), setting)
    each_size = [replace(setting, size=size, steps=STEPS) for size in SIZES]
    batches = [
        ours.one_batch(stories.one_panel(each, count)) for each in each_size for count in BATCHES
    ]
    memory = Memory(setting.device)
    for batch in batches * 2:  # the second time round the last of them is captured
        ours.draw(engine, batch)
    before, drawn = memory.held, 0
    while drawn < PICTURES:
        for batch in batches:
            drawn += len(ours.draw(engine, batch))
    grown = memory.held - before
    say(f"memory   {drawn} pictures left {grown} bytes more")
    return {"pictures": drawn, "memory grown, bytes": judged(grown, 0, most=True)}
