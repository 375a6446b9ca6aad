"""Where an environment draws, in which type, and how exactly a GPU convolves there."""

from contextlib import AbstractContextManager

import torch

from comicgen.environment import Environment

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def place_of(environment: Environment) -> tuple[torch.device, torch.dtype]:
    """The device of an environment, a GPU by its number, and the type of its weights."""
    place = torch.device(environment.device)
    if place.type == "cuda":
        place = torch.device("cuda", place.index or 0)
    return place, PRECISIONS[environment.precision]


def exact_convolutions() -> AbstractContextManager[None]:
    """In float32 not TF32, which keeps 10 of its 23 bits; and never another kernel by timing."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=False, allow_tf32=False
    )
    return flags
