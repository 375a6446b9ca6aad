"""Fused kernels, compiled by a process of its own: threads would take turns with the imports.

    python -m comicgen.cli.compiling DEVICE

Triton keeps what it compiles on the disk, where the process that draws finds it.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress

from comicgen.environment import current

PATIENCE = 120.0
"""Seconds after which the process that draws compiles for itself."""


class Compiling:
    """The process; it ends with this one, however that ends."""

    def __init__(self, device: str) -> None:
        """Begin.

        Raises:
            OSError: the system has no process left.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, device],  # and find nothing where we are called
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Wait until it is done, if need be for `PATIENCE`; what failed will fail here again."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.end()

    def end(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.communicate()


def main(device: str) -> int:
    """Try the kernels, which compiles them, and tell by the exit code whether they work.

    In float16, which every fused drawing needs; who draws in another type tries that too.
    """
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from comicgen.diffusion.fused_check import begin
    from comicgen.diffusion.precision import place_of

    return 1 if begin(*place_of(current(device, "fp16"))).result() else 0


def _end_with_stdin() -> None:
    while os.read(0, 1):  # sys.stdin's lock would be held when Python ends
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
