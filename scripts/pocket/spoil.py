"""Pictures as they should not be: what the words `blurry, low quality` mean to the model."""

import torch
from torch import Tensor
from torch.nn import functional


def spoilt(pictures: Tensor) -> Tensor:
    """Coarse, soft and somewhat dull versions of pictures (n, 3, h, w), -1 to 1.

    All of one call are spoilt alike, as strongly as chance decides. Little is taken from the
    colours: pastel drawings and fog are dull, and what a negative prompt names is turned round.
    """
    height, width = pictures.shape[-2:]
    coarse = torch.empty(()).uniform_(2.0, 4.0).item()
    small = functional.interpolate(
        pictures, (round(height / coarse), round(width / coarse)), mode="area"
    )
    soft = functional.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    grey = soft.mean(1, keepdim=True)
    dull = torch.lerp(soft, grey, torch.empty(()).uniform_(0.0, 0.15).item())
    return torch.lerp(dull, grey.mean((2, 3), keepdim=True), 0.05)
