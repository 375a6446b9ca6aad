"""What a line of the journal can say: what happened, or what the engine told, as it told it."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from comicgen.engine import GraphLabel, Note
from comicgen.numerics import Numerics

JOURNAL_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Head:
    """The first line. `path` leads from the output folder to the storyboard.

    `numerics`, plain or fused, are the folder's for good.
    """

    storyboard: str
    path: str
    numerics: str
    comicgen: str
    format: int = JOURNAL_FORMAT


@dataclass(frozen=True, slots=True)
class Begun:
    """A run begins. `time` is UTC in ISO 8601, `pictures` what it means to draw, `choices` how."""

    time: str
    environment: Mapping[str, Any]
    pictures: int
    warnings: Sequence[str]
    choices: Sequence[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run ends; `stopped` says why it ended early. `memory` is the peak RSS in bytes."""

    time: str
    seconds: float
    memory: int
    stopped: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The author asked for more than the storyboard says."""

    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settled:
    """The numerics of all pictures of one size, from its first on."""

    size: Mapping[str, int]
    numerics: Numerics


@dataclass(frozen=True, slots=True)
class Outcome:
    """What every line about a candidate says of it."""

    candidate: str
    panel: str
    number: int
    seed: int
    fingerprint: str
    fields: Mapping[str, Any]
    environment: str


@dataclass(frozen=True, slots=True)
class Done(Outcome):
    """A candidate is drawn and its picture is in its place."""

    file: str
    sha256: str
    bytes: int
    mtime_ns: int
    bucket: Mapping[str, Any]
    lane: int
    seconds: float
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Failure(Outcome):
    """A candidate could not be drawn."""

    reason: str


Entry = Head | Begun | Ended | Asked | Settled | Done | Failure | Note | GraphLabel

EVENTS: dict[str, type[Entry]] = {
    "head": Head,
    "begun": Begun,
    "ended": Ended,
    "asked": Asked,
    "settled": Settled,
    "done": Done,
    "failed": Failure,
    "note": Note,
    "graph": GraphLabel,
}
NAMES = {kind: event for event, kind in EVENTS.items()}


def encode(entry: Entry) -> bytes:
    """The line of `entry`, with its newline; a path that is no UTF-8 is escaped in it."""
    line = {"event": NAMES[type(entry)], **asdict(entry)}
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    body = text.encode("utf-8", "backslashreplace").removesuffix(b"}")
    return body + _seal(body) + b"\n"


def decode(line: bytes) -> Entry:
    """The entry of a line, with or without its newline.

    Raises:
        ValueError, TypeError, KeyError: the line is damaged.
    """
    line = line.removesuffix(b"\n")
    body = line[: -len(_seal(b""))]
    if line != body + _seal(body):
        raise ValueError("the line does not have the checksum that it says")
    values = dict(json.loads(line))
    del values["crc"]
    return EVENTS[values.pop("event")](**values)


def _seal(body: bytes) -> bytes:
    """How a line ends that begins with `body`: with its CRC-32, so that no damage goes unseen."""
    return b', "crc": "%08x"}' % zlib.crc32(body)
