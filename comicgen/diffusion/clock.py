"""Seconds of the work that a device does, not of the host that asks for it."""

import time
from typing import Any

import torch


class Clock:
    """Seconds between two points of the work of a device, on its current stream."""

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
        """From the first point to the last, which a GPU is waited for to reach."""
        begun, ended = self._points[0], self._points[-1]
        if not self._on_gpu:
            return float(ended - begun)
        ended.synchronize()
        return float(begun.elapsed_time(ended) / 1e3)
