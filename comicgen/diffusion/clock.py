"""Seconds of the work that a device does, not of the host that asks for it."""

import time
from typing import Any

import torch


class Clock:
    """Seconds between points of the work of a device, on its current stream.

    It stops at every second point, and goes on at the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._points: list[Any] = []

    def mark(self) -> None:
        """Mark a point; a GPU is not waited for."""
        if not self._on_gpu:
            self._points.append(time.perf_counter())
            return
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._points.append(event)

    def seconds(self) -> float:
        """In which it went, up to the last point, which a GPU is waited for to reach."""
        spans = list(zip(self._points[::2], self._points[1::2], strict=True))
        if not self._on_gpu:
            return float(sum(ended - begun for begun, ended in spans))
        self._points[-1].synchronize()
        return float(sum(begun.elapsed_time(ended) for begun, ended in spans) / 1e3)
