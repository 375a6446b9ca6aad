"""Batches made by hand, drawn, and compared as pixels."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import ControlNetModel
from PIL import Image, ImageDraw
from plan_stories import panel

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.models import Components
from comicgen.digests import digest_file, digest_files
from comicgen.engine import Drawn, Failed
from comicgen.plan import Batch, Bucket, Candidate, ControlWindow
from comicgen.sizes import Size
from comicgen.storyboard import Control, Model, Panel
from comicgen.weights import read_controlnet, read_model

SIZE = Size(192, 128)
PROMPTS = (
    "a farmer in a blue shirt walking on the left on a beach at night, comic book style",
    "a red house under a large moon",
    "two dogs in a forest",
    "a sailor with a lamp, rain",
)


def shot(**changes: object) -> Panel:
    """A panel that is quick to draw."""
    quick = {"prompt": PROMPTS[0], "size": SIZE, "steps": 8, "guidance": 5.0}
    return panel(**{**quick, **changes})


def candidate(panel: Panel, seed: int = 7) -> Candidate:
    return Candidate(panel, 1, seed, {})


def batch(*lanes: Candidate | None) -> Batch:
    """One batch of these lanes, which all agree with the first candidate."""
    first = next(lane for lane in lanes if lane).panel
    control = first.control
    return Batch(
        Bucket(len(lanes), first.size, 1, int(control is not None), first.guidance > 1),
        first.loras,
        first.sampler,
        first.steps,
        control and ControlWindow(control.model, control.start, control.end),
        lanes,
    )


@dataclass(frozen=True)
class Results:
    """What became of a batch."""

    drawn: Sequence[Drawn]
    failed: Sequence[Failed]

    @property
    def images(self) -> list[Image.Image]:
        assert not self.failed, self.failed
        return [each.image for each in self.drawn]


def draw(engine: DiffusionEngine, *lanes: Candidate | None) -> Results:
    events = list(engine.draw(batch(*lanes), ()))
    return Results(
        [event for event in events if isinstance(event, Drawn)],
        [event for event in events if isinstance(event, Failed)],
    )


def image(engine: DiffusionEngine, panel: Panel, seed: int = 7) -> Image.Image:
    """One candidate drawn alone."""
    return draw(engine, candidate(panel, seed)).images[0]


@dataclass(frozen=True)
class Difference:
    """Between two pictures, in levels of 255."""

    largest: int
    mean: float


def difference(one: Image.Image, other: Image.Image) -> Difference:
    assert one.size == other.size
    gap = np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int))
    return Difference(int(gap.max()), float(gap.mean()))


def assert_same(one: Image.Image, other: Image.Image) -> None:
    """The pictures differ by nothing but rounding."""
    gap = difference(one, other)
    assert gap.largest <= 2, gap
    assert gap.mean < 0.1, gap


def with_zeros(model: Components, zeros: bool) -> Components:
    """The model with another `force_zeros_for_empty_prompt`."""
    return replace(model, folder=replace(model.folder, force_zeros_for_empty_prompt=zeros))


def write_controlnet(folder: Path, model: Components, strength: float = 0.2) -> Model:
    """A random ControlNet for the model, with filled outputs, that sees its image clearly."""
    torch.manual_seed(0)
    network = ControlNetModel.from_unet(
        model.unet, conditioning_embedding_out_channels=(16, 16, 32, 32)
    )
    generator = torch.Generator().manual_seed(1)
    silent = [parameter for parameter in network.parameters() if not parameter.any()]
    with torch.no_grad():
        for parameter in silent:
            parameter.copy_(strength * torch.randn(parameter.shape, generator=generator))
        for name, parameter in network.controlnet_cond_embedding.named_parameters():
            parameter.mul_(2.5 if name.endswith("weight") else 1)
    network.save_pretrained(folder)
    return controlnet_at(folder, model)


def model_at(folder: Path) -> Model:
    """A model's folder as a storyboard holds it."""
    return Model(folder.name, folder, digest_files(folder, read_model(folder).files))


def controlnet_at(folder: Path, model: Components) -> Model:
    """A ControlNet's folder as a storyboard holds it."""
    files = read_controlnet(folder, model.folder).files
    return Model(folder.name, folder, digest_files(folder, files))


def write_map(file: Path, size: Size = SIZE, shift: int = 0) -> Path:
    """White lines on black."""
    picture = Image.new("RGB", (size.width, size.height))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((20 + shift, 20, 90 + shift, 100), outline="white", width=4)
    pen.line((0, 110, size.width, 60 + shift), fill="white", width=3)
    picture.save(file)
    return file


def control(model: Model, image: Path, weight: float = 0.7) -> Control:
    digest = digest_file(image) if image.exists() else "absent"
    return Control(model, image, digest, weight, 0.2, 0.8)


def overflowing(vae: Any) -> Any:
    """The same pictures by way of numbers that float16 cannot hold: a norm undoes the factor."""
    scaled = copy.deepcopy(vae)
    convolution = scaled.decoder.mid_block.resnets[0].conv1
    convolution.weight.mul_(2**17)
    convolution.bias.mul_(2**17)
    assert convolution.weight.abs().max() < torch.finfo(torch.float16).max
    return scaled
