"""How much of a long run the GPU does nothing.

Idle is the time of `render`, from its first batch to the last file on the disk, in which by the
GPU's own record no kernel and no copy ran.
"""

import time
from typing import Any

import torch

from bench_parts import ours, stories
from bench_parts.record import covered, recorded
from bench_parts.setting import Setting, say
from bench_parts.timing import judged
from comicgen.outputs import Outputs
from comicgen.render import render

FLOOR = 0.03
PANELS, CANDIDATES = 50, 4
"""200 pictures."""

SHORT = 100_000
"""Nanoseconds: a longer gap is a wait for the processor, a shorter one lies between two kernels."""


def measure(setting: Setting) -> dict[str, Any]:
    """The idle share of a whole story of one size, after a batch that captures its graph."""
    storyboard = stories.many_panels(setting, PANELS, CANDIDATES)
    engine = ours.open_engine(storyboard, setting)
    ours.draw(engine, ours.planned(storyboard, setting).batches[0])
    held = torch.cuda.memory_reserved(setting.device)
    seconds = 0.0
    with Outputs.open(setting.folder / "idle", storyboard, setting.environment) as outputs:
        todo = ours.planned(storyboard, setting, outputs.memory)

        def run() -> None:
            nonlocal seconds
            begun = time.perf_counter()
            result = render(todo, engine, outputs, lambda event: None)
            seconds = time.perf_counter() - begun
            assert result.drawn == todo.pictures, f"{result.failed} pictures failed"

        spans = recorded(run)
    busy, gaps = covered(spans)
    idle = 1 - busy / 1e9 / seconds
    say(f"idle     {100 * idle:.2f} % of {seconds:.1f} s, {todo.pictures} pictures")
    return {
        "pictures": todo.pictures,
        "seconds": round(seconds, 3),
        "kernels and copies": len(spans),
        "between kernels, s": round(sum(gap for gap in gaps if gap <= SHORT) / 1e9, 3),
        "waiting for the processor, s": round(sum(gap for gap in gaps if gap > SHORT) / 1e9, 3),
        "longest gaps, ms": [round(gap / 1e6, 2) for gap in sorted(gaps, reverse=True)[:10]],
        "memory grown, bytes": torch.cuda.memory_reserved(setting.device) - held,
        "idle": judged(idle, FLOOR, most=True),
    }
