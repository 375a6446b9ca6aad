"""The storyboard: from the author's YAML to typed panels."""

from comicgen.storyboard.format import schema
from comicgen.storyboard.load import load
from comicgen.storyboard.samplers import SAMPLERS
from comicgen.storyboard.story import Control, Lora, Model, Panel, Storyboard, in_order, in_window

__all__ = [
    "SAMPLERS",
    "Control",
    "Lora",
    "Model",
    "Panel",
    "Storyboard",
    "in_order",
    "in_window",
    "load",
    "schema",
]
