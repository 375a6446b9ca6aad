"""Several processes, one for each GPU, that train one network: started by torchrun.

    torchrun --nproc-per-node 2 scripts/pocket/train.py unet --work DIR

Alone, a process is the first of one.
"""

import os
from collections.abc import Iterable
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
"""The number of this process, from 0, and how many there are."""


def join() -> None:
    """Meet the other processes; each takes a GPU of its own."""
    if RANKS > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(RANK)
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def leave() -> None:
    if RANKS > 1:
        dist.destroy_process_group()


def meet() -> None:
    """Wait until all have come here."""
    if RANKS > 1:
        dist.barrier()


def average(values: Tensor) -> None:
    """Make `values` the mean of all processes' values, in place."""
    if RANKS > 1:
        dist.all_reduce(values)
        values /= RANKS


def begin_alike(values: Iterable[Tensor]) -> None:
    """Give all processes the first one's values, in place."""
    if RANKS > 1:
        for each in values:
            dist.broadcast(each, 0)


def agreed(value: float, device: torch.device) -> float:
    """The first process' value."""
    if RANKS == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return shared.item()


def total(count: int, device: torch.device) -> int:
    """Of all processes."""
    if RANKS == 1:
        return count
    shared = torch.tensor([count], device=device)
    dist.all_reduce(shared)
    return int(shared)


def mine(name: str) -> bool:
    """Whether this process reads the file of that name: each file has one reader."""
    return crc32(name.encode()) % RANKS == RANK
