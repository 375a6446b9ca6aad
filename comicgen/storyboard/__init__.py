"""The storyboard: from the author's YAML to typed panels."""

from comicgen.storyboard.story import Control, Lora, Model, Panel, Storyboard

__all__ = ["Control", "Lora", "Model", "Panel", "Storyboard"]
