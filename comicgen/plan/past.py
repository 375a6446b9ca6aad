"""What an output folder remembers, as the plan reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Past:
    """The last that the journal says of one candidate, and how its file is now.

    `detail` completes `state`: why it failed, or how the file differs. `environment` is the
    label of what it was drawn with; `seconds` what it cost.
    """

    state: Literal["done", "failed", "missing", "damaged"]
    fingerprint: str
    fields: Mapping[str, Any] = field(repr=False)
    environment: str
    seconds: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reseed:
    """A seed that replaces the storyboard's own seed `instead_of` for one candidate."""

    seed: int
    instead_of: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything a plan needs to know of an output folder; an empty one knows nothing.

    `candidates` by name; `more` counts extra candidates by panel id; `asked` names candidates
    that the author asked to have drawn again and that were not drawn since.
    """

    candidates: Mapping[str, Past] = field(default_factory=dict)
    more: Mapping[str, int] = field(default_factory=dict)
    reseeds: Mapping[str, Reseed] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
