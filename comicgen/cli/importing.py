"""What drawing needs before it can begin: libraries, and on a GPU kernels."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Lock

from comicgen.cli.compiling import Compiling
from comicgen.cli.situation import Wish
from comicgen.environment import Environment, current

_ENGINE = "comicgen.diffusion.engine"

_importing = Lock()


class _Meanwhile:
    """What is done by another process while this one imports."""

    compiling: Compiling | None = None


_meanwhile = _Meanwhile()


def prepare(device: str, wish: Wish) -> None:
    """Import the engine, and have kernels compiled that a run with this wish may draw with.

    Raises:
        CommandError: there is no such device.
    """
    with _importing:
        if _ENGINE in sys.modules:
            return
        if wish != "plain" and (here := current(device, None)).on_gpu:
            with suppress(OSError):
                _meanwhile.compiling = Compiling(here.device)
        _import()


def import_engine() -> None:
    """Import torch and what draws with it."""
    with _importing:  # or another thread would take a switched off collector for the author's wish
        if _ENGINE not in sys.modules:
            _import()


def settle_kernels(environment: Environment) -> None:
    """Wait for kernels that are being compiled, where the environment draws with them."""
    compiling, _meanwhile.compiling = _meanwhile.compiling, None
    if compiling is not None:
        if environment.kind == "fused":
            compiling.wait()
        else:
            compiling.end()


def _import() -> None:
    with _without_garbage():
        import_module(_ENGINE)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Do not look for garbage, which takes a fifth of the time, and later not among what is
    imported here, for it stays.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
