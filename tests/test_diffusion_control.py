"""Control images reach the ControlNet as diffusers would hand them over."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from drawings import write_map
from PIL import Image

from comicgen.diffusion.control import ControlNets, read_control_image
from comicgen.diffusion.models import Components
from comicgen.errors import CandidateError
from comicgen.plan import ControlWindow
from comicgen.sizes import Size
from comicgen.storyboard import Model

PROCESSOR = VaeImageProcessor(vae_scale_factor=8, do_convert_rgb=True, do_normalize=False)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [Size(192, 128), Size(96, 64), Size(384, 256)])
def test_pixels_are_diffusers(mode: str, size: Size, tmp_path: Path) -> None:
    file = write_map(tmp_path / "map.png")
    Image.open(file).convert(mode).save(file)
    tensor = read_control_image(file, size)

    expected = PROCESSOR.preprocess(Image.open(file), height=size.height, width=size.width)
    assert torch.equal(tensor, expected)


def test_a_palette_is_resolved_before_resizing(tmp_path: Path) -> None:
    file = write_map(tmp_path / "map.png")
    Image.open(file).convert("P").save(tmp_path / "palette.png")
    sizes = Size(96, 64)

    assert torch.equal(
        read_control_image(tmp_path / "palette.png", sizes), read_control_image(file, sizes)
    )


def test_sixteen_bits_are_as_good_as_eight(tmp_path: Path) -> None:
    grey = Image.linear_gradient("L")
    grey.save(tmp_path / "8.png")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(tmp_path / "16.png")

    eight, sixteen = (read_control_image(tmp_path / f"{n}.png", Size(256, 256)) for n in (8, 16))
    assert torch.equal(sixteen, eight)


def test_pixels_of_unknown_range_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "depth.tif"
    Image.linear_gradient("L").convert("F").save(file)

    with pytest.raises(CandidateError, match=r"depth\.tif.*32 bits and unknown range"):
        read_control_image(file, Size(256, 256))


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    cut = write_map(tmp_path / "cut.png")
    cut.write_bytes(cut.read_bytes()[:150])
    text = tmp_path / "text.png"
    text.write_text("no picture")

    for file in (cut, text, tmp_path / "missing.png"):
        with pytest.raises(CandidateError, match=file.name):
            read_control_image(file, Size(192, 128))


@pytest.mark.parametrize("start", [0.0, 0.2, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("end", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("steps", [1, 7, 10, 20])
def test_the_window_is_diffusers(start: float, end: float, steps: int) -> None:
    window = ControlWindow(Model("x", Path("x"), "x"), start, end)
    opened = [window.is_open(step, steps) for step in range(steps)]

    kept = [1.0 - float(i / steps < start or (i + 1) / steps > end) for i in range(steps)]
    assert opened == [bool(keep) for keep in kept]


def test_a_folder_that_is_no_controlnet_is_named(tmp_path: Path, pocket: Components) -> None:
    with pytest.raises(CandidateError, match="absent"):
        ControlNets(pocket).get(Model("absent", tmp_path / "absent", "x"))
