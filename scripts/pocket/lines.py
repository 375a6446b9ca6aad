"""Line art of a picture, in the form the `lineart` ControlNet reads: white lines on black.

    python scripts/pocket/lines.py PICTURE MAP.png

A line is where the smoothed picture changes steeply, thinned to the crest of the change and
drawn three pixels wide.
"""

import argparse

import numpy as np
import torch
from PIL import Image
from plainly import plainly
from torch import Tensor
from torch.nn import functional

STEEPNESS = 22
RIDGE = 0.92


def blurred(picture: Tensor) -> Tensor:
    """The picture (n, c, h, w) under a 5x5 binomial filter, its border repeated."""
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=picture.device) / 16
    kernel = (taps[:, None] * taps).expand(picture.shape[1], 1, 5, 5).to(picture.dtype)
    padded = functional.pad(picture, (2, 2, 2, 2), mode="replicate")
    return functional.conv2d(padded, kernel, groups=picture.shape[1])


def steepness(pictures: Tensor) -> Tensor:
    """Largest central difference over the colour channels.

    pictures: (n, 3, h, w), 0 to 255. Returns (n, 1, h, w), 0 to 255, uint8.
    """
    smooth = functional.pad(blurred(pictures.float()), (1, 1, 1, 1), mode="replicate")
    across = smooth[..., 1:-1, 2:] - smooth[..., 1:-1, :-2]
    down = smooth[..., 2:, 1:-1] - smooth[..., :-2, 1:-1]
    slope = torch.hypot(across, down).amax(1, keepdim=True)
    return slope.clamp(0, 255).to(torch.uint8)


def dilated(mask: Tensor, width: int = 3) -> Tensor:
    return functional.max_pool2d(mask, width, stride=1, padding=width // 2)


def crests(slope: Tensor, threshold: Tensor | float = STEEPNESS) -> Tensor:
    """1 where the slope (n, 1, h, w) is steep and nearly the steepest around, else 0."""
    slope = slope.float()
    return ((slope > threshold) & (slope >= RIDGE * dilated(slope))).float()


def line_art(pictures: Tensor) -> Tensor:
    """pictures: (n, 3, h, w), 0 to 255. Returns (n, 1, h, w), float32: 1 on a line, else 0."""
    return dilated(crests(steepness(pictures)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the line art of a picture.")
    parser.add_argument("picture")
    parser.add_argument("map")
    arguments = parser.parse_args()
    pixels = np.array(Image.open(arguments.picture).convert("RGB"))
    lines = line_art(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0, 0]
    Image.fromarray((lines * 255).byte().numpy()).convert("RGB").save(arguments.map)


if __name__ == "__main__":
    with plainly(ValueError):
        main()
