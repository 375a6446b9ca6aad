"""Arms timed in turn."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing(Generic[Result]):
    """Seconds of each round, and what the last one returned."""

    rounds: tuple[float, ...]
    last: Result

    def __str__(self) -> str:
        return f"{self.median:8.3f} s ({min(self.rounds):.3f} to {max(self.rounds):.3f})"

    @property
    def median(self) -> float:
        return median(self.rounds)

    def each_of(self, count: int) -> "Timing[Result]":
        """The share of one of `count` things that were done together."""
        return replace(self, rounds=tuple(seconds / count for seconds in self.rounds))

    def to_json(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 4),
            "least": round(min(self.rounds), 4),
            "most": round(max(self.rounds), 4),
            "rounds": [round(seconds, 4) for seconds in self.rounds],
        }


def in_turn(
    arms: Mapping[str, Callable[[], Result]], rounds: int, device: torch.device
) -> dict[str, Timing[Result]]:
    """Every arm once in every round, so that a machine that slows down slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    last: dict[str, Result] = {}
    for _ in range(rounds):
        for name, arm in arms.items():
            spent, last[name] = timed(arm, device)
            seconds[name].append(spent)
    return {name: Timing(tuple(seconds[name]), last[name]) for name in arms}


def timed(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Seconds until the work is done and the device idle, and what came of it."""
    _wait(device)
    begun = time.perf_counter()
    result = work()
    _wait(device)
    return time.perf_counter() - begun, result


def judged(value: float, floor: float, *, most: bool = False) -> dict[str, Any]:
    """A figure beside the least that it must be, or the `most`."""
    met = value <= floor if most else value >= floor
    return {"value": round(value, 4), "floor": floor, "met": met}


def matmul_ceiling(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """The rate of one large matrix product of random numbers, the best of ten."""
    edge = 8192 if device.type == "cuda" else 512
    one, other = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    torch.mm(one, other)
    seconds = min(timed(lambda: torch.mm(one, other), device)[0] for _ in range(10))
    return {"edge": edge, "TFLOP/s": round(2 * edge**3 / seconds / 1e12, 3)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
