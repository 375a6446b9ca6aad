"""How much of a long run the GPU does nothing.

By its own record (CUPTI, through torch's profiler): kernels and copies as intervals of time, on
all streams together. Idle is what none of them covers, from the first to the last. Keeping that
record slows the run a little, and makes gaps between kernels longer, never shorter.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench_parts import ours, stories
from bench_parts.setting import Setting, say
from bench_parts.timing import judged

FLOOR = 0.03
PANELS, CANDIDATES = 50, 4
"""200 pictures."""

Interval = tuple[int, int]
"""Nanoseconds."""


def measure(setting: Setting) -> dict[str, Any]:
    """The idle share of a whole story of one size, after a batch that captures its graph."""
    storyboard = stories.many_panels(setting, PANELS, CANDIDATES)
    batches = ours.planned(storyboard, setting).batches
    engine = ours.open_engine(storyboard, setting)
    ours.draw(engine, batches[0])
    held = torch.cuda.memory_reserved(setting.device)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for number, batch in enumerate(batches, start=1):
            for _ in engine.draw(batch, batches[number:]):
                pass
        torch.cuda.synchronize(setting.device)
    grown = torch.cuda.memory_reserved(setting.device) - held
    busy, whole, longest = _covered(_intervals(recorded))
    idle = 1 - busy / whole
    pictures = sum(len(batch.candidates) for batch in batches)
    say(f"idle     {100 * idle:.2f} % of {whole / 1e9:.1f} s, {pictures} pictures")
    return {
        "pictures": pictures,
        "seconds": round(whole / 1e9, 3),
        "longest gaps, ms": [round(gap / 1e6, 2) for gap in longest],
        "memory grown, bytes": grown,
        "idle": judged(idle, FLOOR, most=True),
    }


def _intervals(recorded: Any) -> list[Interval]:
    """When something ran, in order. torch's own list of it is slower to build than the run."""
    on_gpu = torch.autograd.DeviceType.CUDA
    events = recorded.profiler.kineto_results.events()
    return sorted(
        (each.start_ns(), each.end_ns()) for each in events if each.device_type() == on_gpu
    )


def _covered(intervals: Iterable[Interval]) -> tuple[int, int, list[int]]:
    """Nanoseconds that the intervals, in order, cover; from first to last; the longest gaps."""
    first, busy, last, gaps = None, 0, 0, []
    for begun, ended in intervals:
        if first is None:
            first = last = begun
        if begun > last:
            gaps.append(begun - last)
        busy += max(0, ended - max(begun, last))
        last = max(last, ended)
    return busy, last - (first or 0), sorted(gaps, reverse=True)[:10]
