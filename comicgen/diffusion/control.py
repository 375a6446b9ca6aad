"""Control images as tensors, and the ControlNets that read them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comicgen.diffusion.models import Components, load_controlnet
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.errors import CandidateError, InputError
from comicgen.images import read_rgb
from comicgen.sizes import Size
from comicgen.storyboard import Model
from comicgen.weights import read_controlnet


def read_control_image(file: Path, size: Size) -> Tensor:
    """(1, 3, H, W) float32 in 0..1 on the CPU, as diffusers' control image processor makes it.

    An image of another size is resized with Pillow's Lanczos filter.

    Raises:
        CandidateError: the file cannot be read, or has changed since the storyboard was read.
    """
    try:
        image = read_rgb(file)
    except (InputError, CandidateError) as error:
        raise CandidateError(f"{file}: {error}") from error
    if image.size != (size.width, size.height):
        image = image.resize((size.width, size.height), Image.Resampling.LANCZOS)
    pixels = np.asarray(image).astype(np.float32) / 255.0
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0).contiguous()


class ControlNets:
    """The ControlNets of a run, each loaded when it is first needed."""

    def __init__(self, model: Components) -> None:
        self._model = model
        self._loaded: dict[str, Any] = {}

    def get(self, controlnet: Model) -> Any:
        """The network, on the model's device.

        Raises:
            CandidateError: it does not fit the model, is broken, or has changed meanwhile.
        """
        if controlnet.digest not in self._loaded:
            try:
                found = read_controlnet(controlnet.folder, self._model.folder)
                network = load_controlnet(controlnet.folder, self._model)
                check_unchanged(found.folder, controlnet.digest, found.files)
            except InputError as error:
                raise CandidateError(str(error)) from error
            self._loaded[controlnet.digest] = network
        return self._loaded[controlnet.digest]
