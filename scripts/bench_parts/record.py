"""The GPU's own record of a run (CUPTI, through torch's profiler)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, order=True)
class Span:
    """A kernel or a copy, in nanoseconds."""

    begun: int
    ended: int
    name: str


def recorded(work: Callable[[], object]) -> list[Span]:
    """What a GPU did meanwhile, in order.

    Keeping that record slows the run a little, and makes gaps between kernels longer, never
    shorter. torch's own list of it is slower to build than the run.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        work()
        torch.cuda.synchronize()
    events: Any = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    on_gpu = torch.autograd.DeviceType.CUDA
    spans = (
        Span(each.start_ns(), each.end_ns(), each.name())
        for each in events
        if each.device_type() == on_gpu
    )
    return sorted(spans)


def covered(spans: Iterable[Span]) -> tuple[int, list[int]]:
    """Nanoseconds in which any of the spans, in order, was there; and the gaps between them."""
    busy, last, gaps = 0, None, []
    for span in spans:
        if last is None:
            last = span.begun
        if span.begun > last:
            gaps.append(span.begun - last)
        busy += max(0, span.ended - max(span.begun, last))
        last = max(last, span.ended)
    return busy, gaps
