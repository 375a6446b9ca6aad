"""Labelled pictures for the readers, kept on the training device and taken in as they appear."""

from collections.abc import Callable
from pathlib import Path

import torch
from feed import Feed
from pixels import as_values
from pool import SHARES, Chunk
from torch import Tensor
from vocabulary import SIZES

LIMIT = 120_000
"""Scenes of a kind that are kept on the device."""


class Shelf:
    """Pictures (n, h, w, 3), uint8, and labels (n, k), int64, of one size and kind."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device, self.count = most, device, 0
        self.pictures = self.labels = torch.empty(0)

    def add(self, pictures: Tensor, labels: Tensor) -> None:
        """Keep as many as there is room for."""
        end = min(self.most, self.count + len(pictures))
        if end > len(self.pictures):
            room = min(self.most, 2 * end)
            self.pictures = self._grown(self.pictures, pictures, room)
            self.labels = self._grown(self.labels, labels, room)
        self.pictures[self.count : end] = pictures[: end - self.count].to(self.device)
        self.labels[self.count : end] = labels[: end - self.count].to(self.device)
        self.count = end

    def _grown(self, old: Tensor, like: Tensor, room: int) -> Tensor:
        new = torch.empty((room, *like.shape[1:]), dtype=like.dtype, device=self.device)
        if self.count:
            new[: self.count] = old[: self.count]
        return new

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Pictures (count, 3, h, w), -1 to 1, float32, and their labels."""
        chosen = torch.randint(self.count, (count,), device=self.device)
        pictures = self.pictures[chosen].permute(0, 3, 1, 2)
        return as_values(pictures), self.labels[chosen]


class Supply:
    """The scenes of a pool on shelves of the device, taken in as they appear.

    kinds: those of the chunks that are wanted; a batch has as many of each.
    """

    def __init__(
        self,
        pool: Path,
        kinds: tuple[str, ...],
        labels_of: Callable[[Chunk], Tensor],
        device: torch.device,
    ) -> None:
        self.feed = Feed(pool, waiting=48, shared=False)
        self.kinds, self.labels_of, self.device = kinds, labels_of, device
        self.shelves = {
            (kind, size): Shelf(LIMIT * share // sum(SHARES.values()), device)
            for kind in kinds
            for size, share in SHARES.items()
        }

    @property
    def count(self) -> int:
        return sum(shelf.count for shelf in self.shelves.values())

    def take_in(self, most: int = 4) -> None:
        """Shelve what was read since, at most so many chunks."""
        if all(shelf.count == shelf.most for shelf in self.shelves.values()):
            return
        for chunk in self.feed.ready(most):
            self._shelve(chunk)

    def wait(self) -> None:
        """Until there is a first batch."""
        for chunk in self.feed:
            self._shelve(chunk)
            if self.draw(len(self.kinds)):
                return

    def _shelve(self, chunk: Chunk) -> None:
        shelf = self.shelves.get((chunk.kind, chunk.size))
        if shelf and shelf.count < shelf.most:
            shelf.add(torch.from_numpy(chunk.pictures), self.labels_of(chunk))

    def draw(self, count: int) -> tuple[Tensor, Tensor] | None:
        """A batch of one size, the kinds one after the other; None when too little is there."""
        counts = [min(self.shelves[kind, size].count for kind in self.kinds) for size in SIZES]
        if not any(counts):
            return None
        size = SIZES[int(torch.multinomial(torch.tensor(counts).float(), 1))]
        parts = [self.shelves[kind, size].draw(count // len(self.kinds)) for kind in self.kinds]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
