"""What all parts of the benchmark share: the model, the machine, the sizes."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from full_size import Parts

from comicgen.diffusion.precision import PRECISIONS
from comicgen.environment import Environment
from comicgen.sizes import Size


@dataclass(frozen=True)
class Setting:
    """How a benchmark is run; `folder` takes storyboards and pictures.

    `pictures` are how many are drawn side by side, where it is not each part's own choice;
    `kept` is a folder for what a part needs to go on where its time was over.
    """

    parts: Parts
    environment: Environment
    size: Size
    steps: int
    rounds: int | None
    panels: int
    pictures: tuple[int, ...]
    folder: Path
    kept: Path | None = None

    @property
    def plain(self) -> "Setting":
        """The same with plain numerics."""
        return replace(self, environment=self.environment.drawing("plain"))

    @property
    def device(self) -> torch.device:
        return torch.device(self.environment.device)

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.environment.precision]

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Three shapes of about the same area: 1024x1024, 832x1216, 1216x832."""
        return tuple(
            Size(
                _multiple_of_32(self.size.width * width), _multiple_of_32(self.size.height * height)
            )
            for width, height in ((1, 1), (13 / 16, 19 / 16), (19 / 16, 13 / 16))
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "size": str(self.size),
            "steps": self.steps,
            "rounds": self.rounds,
            "panels": self.panels,
            "pictures": [*self.pictures],
            "model": str(self.parts.model),
            **asdict(self.environment),
        }


def say(line: str) -> None:
    """A line for people."""
    print(line, file=sys.stderr, flush=True)


def _multiple_of_32(length: float) -> int:
    return 32 * round(length / 32)
