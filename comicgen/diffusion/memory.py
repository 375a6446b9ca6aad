"""How much memory of a GPU is free, and how much a piece of work takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU's memory ran out, in torch's allocator or in the driver beside it."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


@dataclass(slots=True)
class Taken:
    """Bytes that a piece of work held at its height beyond what was held before."""

    bytes: int = 0


class Memory:
    """The memory of one GPU, as torch's allocator and the driver count it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak = 0

    @property
    def peak(self) -> int:
        """The most bytes that torch ever held for this process, used or not."""
        return max(self._peak, torch.cuda.max_memory_reserved(self._device))

    def give_back(self) -> None:
        """Let the device have what torch holds and does not use."""
        torch.cuda.empty_cache()

    @property
    def held(self) -> int:
        """Bytes that torch holds now, without unused ones, which are given back."""
        self.give_back()
        return torch.cuda.memory_reserved(self._device)

    @property
    def free(self) -> int:
        """Bytes that the device has for new allocations; unused ones are given back."""
        self.give_back()
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    @contextmanager
    def measured(self) -> Iterator[Taken]:
        """Measure what runs inside; it waits for nothing."""
        self._peak = self.peak  # which the reset forgets
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        taken = Taken()
        try:
            yield taken
        finally:
            taken.bytes = torch.cuda.max_memory_allocated(self._device) - before
