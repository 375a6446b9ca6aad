"""Which word counts: a panel's own, else that of the defaults, else comicgen's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comicgen.errors import Place
from comicgen.storyboard.format import Settings
from comicgen.storyboard.marked import Entries
from comicgen.storyboard.shape import SWITCHES

OURS = Settings.model_validate(
    {"aspect": "1:1", "steps": "20", "guidance": "7", "sampler": "euler", "candidates": "2"}
)


@dataclass(frozen=True, slots=True)
class Level:
    """Settings and where they are written; `who` starts a sentence about them."""

    settings: Settings
    node: Entries
    who: str = ""

    def writes(self, key: str) -> bool:
        """Whether a key has its say here; null has it where it switches something off."""
        said = key in self.settings.model_fields_set
        return said and (getattr(self.settings, key) is not None or key in SWITCHES)


@dataclass(frozen=True, slots=True)
class Setting:
    """The value that counts, and the level that gave it."""

    key: str
    value: Any
    level: Level

    @property
    def place(self) -> Place:
        """Where the value stands."""
        return self.level.node.at(self.key).place

    def inside(self, *path: str | int) -> Place:
        """Where a part of the value stands."""
        return self.level.node.at(self.key, *path).place


def setting(levels: Sequence[Level], *keys: str) -> Setting:
    """What the first level says that writes one of the keys; None if no level does."""
    for level in levels:
        for key in keys:
            if level.writes(key):
                return Setting(key, getattr(level.settings, key), level)
    return Setting(keys[0], None, levels[-1])
