"""What an output folder remembers, as the plan reads it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from comicgen.numerics import Numerics
from comicgen.sizes import Size

Kind = Literal["redo", "reseed", "more"]
"""What a request asks for: the same again, new seeds, more candidates."""


@dataclass(frozen=True, slots=True)
class Past:
    """The last that the journal says of one candidate, and how its file is now.

    `detail` completes `state`: why it failed, or how the file differs. `environment` is the
    label of what it was drawn with; `seconds` what it cost, `bytes` the length of its file.
    """

    state: Literal["done", "failed", "missing", "damaged"]
    fingerprint: str
    fields: Mapping[str, Any] = field(repr=False)
    environment: str
    seconds: float | None = None
    detail: str = ""
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Reseed:
    """A seed that replaces the storyboard's own seed `instead_of` for one candidate."""

    seed: int
    instead_of: int


@dataclass(frozen=True, slots=True)
class Request:
    """A command beyond the storyboard, written into the journal before it is drawn.

    `panels`, `candidate`, `failed` and `count` are the command's own words (no panels: all of
    them); `names` are the candidates it meant, `reseeds` their new seeds.
    """

    kind: Kind
    panels: tuple[str, ...] = ()
    candidate: int | None = None
    count: int | None = None
    names: tuple[str, ...] = ()
    reseeds: Mapping[str, Reseed] = field(default_factory=dict)
    failed: bool = False

    @property
    def asked(self) -> frozenset[str]:
        """Candidates to be drawn although their last picture may be as it should."""
        return frozenset() if self.kind == "more" else frozenset(self.names)

    @property
    def more(self) -> Mapping[str, int]:
        """How many candidates beyond the storyboard's count each panel gets."""
        names = self.names if self.kind == "more" else ()
        return Counter(name.rpartition("-c")[0] for name in names)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, for one line of the journal."""
        return asdict(self) | {"panels": list(self.panels), "names": list(self.names)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; other keys of the mapping raise TypeError."""
        reseeds = {name: Reseed(**reseed) for name, reseed in data["reseeds"].items()}
        lists = {"panels": tuple(data["panels"]), "names": tuple(data["names"])}
        return cls(**{**data, **lists, "reseeds": reseeds})


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything a plan needs to know of an output folder; an empty one knows nothing.

    `candidates` by name; `more` counts extra candidates by panel id; `asked` names candidates
    that the author asked to have drawn again and that were not drawn since; `requests` are the
    commands of which some candidate was not drawn since, the oldest first. Drawn means that the
    journal has a line for it, be it done or failed. `numerics` are the folder's (None: there is no
    folder yet), `sizes` what was decided for single sizes.
    """

    candidates: Mapping[str, Past] = field(default_factory=dict)
    more: Mapping[str, int] = field(default_factory=dict)
    reseeds: Mapping[str, Reseed] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    requests: tuple[Request, ...] = ()
    numerics: Numerics | None = None
    sizes: Mapping[Size, Numerics] = field(default_factory=dict)

    def with_request(self, request: Request) -> Self:
        """What the folder remembers after one more request, of which nothing is drawn yet."""
        return replace(
            self,
            more=Counter(self.more) + Counter(request.more),
            reseeds={**self.reseeds, **request.reseeds},
            asked=self.asked | request.asked,
            requests=(*self.requests, request),
        )
