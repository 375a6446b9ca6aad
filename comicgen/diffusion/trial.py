"""Whether kernels of our own can be used on a device: they are tried before."""

from collections.abc import Callable, Iterable

import torch

from comicgen.diffusion.memory import is_out_of_memory
from comicgen.errors import first_line


def why_not(device: torch.device, wrong: Callable[[], Iterable[str]], fault: str) -> str:
    """Why kernels cannot be used on a GPU; empty where they can. Compiles them on a new machine.

    `wrong` tries them, and names those whose results are not what they must be; `fault` says of
    these what is the matter.

    Raises:
        RuntimeError: memory ran out, which says nothing of the kernels.
    """
    try:
        with torch.cuda.device(device):
            found = sorted(set(wrong()))
    except Exception as error:  # what a compiler and its parts may raise is theirs
        if is_out_of_memory(error):
            raise
        return f"Triton does not work: {first_line(error)}"
    return f"{', '.join(found)} {fault}" if found else ""
