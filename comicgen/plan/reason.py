"""Whether a candidate must be drawn, and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from comicgen.plan.batch import Candidate
from comicgen.plan.past import Memory

_EXCERPT = 40
"""How many characters of a changed text are shown."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate is drawn or, when it is done, kept."""

    kind: Literal["new", "changed", "missing", "damaged", "failed", "asked", "done"]
    detail: str = ""

    @property
    def draw(self) -> bool:
        """Whether the candidate needs drawing."""
        return self.kind != "done"

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


def decide(candidate: Candidate, memory: Memory, environment: str = "") -> Reason:
    """Why this candidate must be drawn, or that it is done.

    `environment` is the label of what a run would draw with now; "" does not compare it.
    """
    past = memory.candidates.get(candidate.name)
    if past is None:
        return Reason("new")
    if past.fingerprint != candidate.fingerprint:
        return Reason("changed", ", ".join(_changes(past.fields, candidate.fields)))
    if past.state != "done":
        return Reason(past.state, past.detail)
    if candidate.name in memory.asked:
        return Reason("asked")
    differs = environment and environment != past.environment
    return Reason("done", "environment differs" if differs else "")


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Each differing field as `steps 20 -> 30`; a field may be absent on one side."""
    for key in dict.fromkeys((*new, *old)):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, f"{inside}{key}.")
        else:
            yield f"{inside}{key} {_shown(before, after)} -> {_shown(after, before)}"


def _shown(value: Any, other: Any) -> str:
    """A field's value in a few words, of long texts the part that differs from the `other`."""
    match value:
        case None:
            return "absent"
        case Mapping() | list():
            return _listed(value)
        case str() if _is_digest(value):
            return value[:8]
        case str():
            return _excerpt(value, other if isinstance(other, str) else "")
        case _:
            return str(value).removesuffix(".0")


def _listed(value: Any) -> str:
    items = value.values() if isinstance(value, Mapping) else value
    return "[" + " ".join(_shown(item, None) for item in items) + "]"


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _excerpt(text: str, other: str) -> str:
    """Up to 40 characters of a text, in quotes, with control characters escaped."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False))
    )
    start = max(0, same - _EXCERPT // 4) if len(text) > _EXCERPT else 0
    end = start + _EXCERPT
    return "..." * (start > 0) + repr(text[start:end]) + "..." * (end < len(text))
