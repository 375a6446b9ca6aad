"""Picture sizes: the sizes a model was trained on, and which one an aspect ratio gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """Width and height of a picture in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"
