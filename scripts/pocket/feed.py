"""Composed scenes on the way to a device: read in a thread, beside the training."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread

import torch
from pool import Chunk, Pool
from torch import Tensor

TINY = 6
"""Scenes of a chunk, where only the code is tried."""
LONG = 120
"""Seconds without a new scene after which nobody seems to compose."""
PATIENCE = 0.5
"""Seconds between two looks into a folder."""
SWITCH = 0.0002
"""Seconds that Python lets the reading thread work on when the training one asks for its turn,
which it does at every call of torch; Python's own 5 ms made steps several times slower."""


class Feed:
    """The chunks of a pool as they appear, until it is closed.

    At most `waiting` of them are kept in memory, and those that are just read.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "*",
        waiting: int = 192,
        tiny: bool = False,
        shared: bool = True,
    ) -> None:
        """kind: of chunk, or all; tiny: keep but a few scenes of each chunk; shared: see `Pool`."""
        self.queue: Queue[Chunk] = Queue(waiting)
        self.tiny = tiny
        self.pool = Pool(folder, kind, shared)
        self.closed = False
        self.fault: Exception | None = None
        sys.setswitchinterval(SWITCH)
        Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def _read(self) -> None:
        try:
            while not self.closed:
                for chunk in self.pool.fresh(64):
                    self._put(chunk.chosen(range(TINY)) if self.tiny else chunk)
                time.sleep(PATIENCE)
        except Exception as fault:  # noqa: BLE001 - what numpy, zlib and json make of broken files
            self.fault = fault

    def _put(self, chunk: Chunk) -> None:
        while not self.closed:
            with suppress(Full):
                self.queue.put(chunk, timeout=PATIENCE)
                return

    def ready(self, most: int | None = None) -> Iterator[Chunk]:
        """What has arrived; does not wait."""
        while most is None or most > 0:
            try:
                yield self.queue.get_nowait()
            except Empty:
                self._look_for_faults()
                return
            most = most and most - 1

    def __iter__(self) -> Iterator[Chunk]:
        """Every chunk, waited for; ends the program when none comes for long."""
        began = time.monotonic()
        while True:
            try:
                yield self.queue.get(timeout=PATIENCE)
                began = time.monotonic()
            except Empty:
                self._look_for_faults()
                if time.monotonic() - began > LONG:
                    raise SystemExit(
                        f"{self.pool.folder}: no new scenes for {LONG} s; fill it with pool.py."
                    ) from None

    def _look_for_faults(self) -> None:
        if self.fault:
            raise SystemExit(f"{self.pool.folder} cannot be read: {self.fault}") from self.fault

    def first(self, scenes: int) -> Iterator[Chunk]:
        """So many scenes or a few more, waited for."""
        for chunk in self:
            yield chunk
            scenes -= len(chunk.captions)
            if scenes <= 0:
                return


def on_device(chunk: Chunk, device: torch.device) -> Tensor:
    """The chunk's pictures, (n, 3, h, w), uint8."""
    return torch.from_numpy(chunk.pictures).to(device).permute(0, 3, 1, 2).contiguous()
