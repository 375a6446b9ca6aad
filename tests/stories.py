"""Writers of storyboards and of the files that they name, for tests."""

import json
import textwrap
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from comicgen import pocket
from comicgen.errors import StoryboardError
from comicgen.storyboard import Panel, Storyboard, load

_SHARED_WITH_UNET = (
    "in_channels",
    "block_out_channels",
    "layers_per_block",
    "down_block_types",
    "mid_block_type",
    "cross_attention_dim",
)


def write_story(folder: Path, text: str) -> Path:
    """The text as a storyboard file."""
    path = folder / "story.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def load_story(folder: Path, text: str) -> Storyboard:
    """The text as a storyboard."""
    return load(write_story(folder, text))


def load_panel(folder: Path, lines: str, above: str = "") -> Panel:
    """The one panel of a storyboard; `lines` follow its id, `above` stands before panels."""
    body = textwrap.indent(textwrap.dedent(lines), "    ")
    return load_story(folder, f"{above}\npanels:\n  - id: p01\n{body}\n").panels[0]


def complaints(folder: Path, text: str) -> list[str]:
    """What is wrong with a storyboard, as line:column: sentence."""
    path = write_story(folder, text)
    try:
        load(path)
    except StoryboardError as error:
        return [str(one).removeprefix(f"{path}:") for one in error.complaints]
    return []


def panel_complaints(folder: Path, lines: str, above: str = "") -> list[str]:
    """What is wrong with a storyboard of one panel; `lines` follow its id."""
    body = textwrap.indent(textwrap.dedent(lines), "    ")
    return complaints(folder, f"{above}\npanels:\n  - id: p01\n{body}\n")


def write_map(file: Path, width: int, height: int) -> Path:
    """A control image of two colours."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (width, height))
    image.paste((255, 255, 255), (0, 0, width // 2, height // 2))
    image.save(file)
    return file


def write_controlnet(folder: Path) -> Path:
    """What looks like a ControlNet for the embedded model from its config."""
    folder.mkdir(parents=True)
    unet = json.loads((pocket.MODEL / "unet" / "config.json").read_text())
    config = {"_class_name": "ControlNetModel", **{key: unet[key] for key in _SHARED_WITH_UNET}}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"conv_in.weight": np.zeros((1, 1), np.float32)}
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    return folder
