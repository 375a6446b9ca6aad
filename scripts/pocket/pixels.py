"""Pictures as they are kept, and as the networks take them."""

import torch
from torch import Tensor


def as_values(pixels: Tensor) -> Tensor:
    """-1 to 1, float32, of 0 to 255, uint8; in any shape."""
    return pixels.float() / 127.5 - 1


def as_pixels(values: Tensor) -> Tensor:
    """0 to 255, uint8, of -1 to 1, in any shape; what is not a number becomes grey."""
    return ((values.float().nan_to_num().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
