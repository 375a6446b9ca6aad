"""YAML as a tree in which every node knows its place and every scalar is still text.

What a scalar means is decided by the field it stands in, so 16:9, no and 010 stay what the author
wrote. Tags, anchors without use, keys written twice and alias bombs are complaints.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from comicgen.errors import Complaint, Place, StoryboardError
from comicgen.storyboard.complaints import Complaints, quoted
from comicgen.storyboard.syntax import explain

LARGEST_FILE = 16 * 2**20
DEEPEST = 20
LARGEST_TREE = 64 * 2**20
"""Characters after all aliases are written out, where every node counts as 64 more."""

PARSER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_NULLS = ("", "~", "null", "Null", "NULL")
_COMMENT = re.compile(r"[ \t]+#")
# What a terminal could obey, except line breaks and tabs; and halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, or None for a plain null; `cut` when a comment follows it directly."""

    place: Place
    text: str | None
    cut: bool
    size: int


@dataclass(frozen=True, slots=True)
class Items:
    """A YAML sequence."""

    place: Place
    items: tuple["Node", ...]
    size: int


@dataclass(frozen=True, slots=True)
class Entries:
    """A YAML mapping, with the places of its keys."""

    place: Place
    entries: Mapping[str, "Node"]
    keys: Mapping[str, Place]
    size: int

    def at(self, *keys: str | int) -> "Node":
        """The node on the path `keys`, as far as there is one."""
        node: Node = self
        for key in keys:
            if isinstance(node, Entries) and key in node.entries:
                node = node.entries[str(key)]
            elif isinstance(node, Items) and isinstance(key, int) and key < len(node.items):
                node = node.items[key]
            else:
                break
        return node


Node = Scalar | Items | Entries


def scalars(node: Node, key: str = "") -> Iterator[tuple[str, Scalar]]:
    """Every scalar with the key under which it stands."""
    if isinstance(node, Scalar):
        yield key, node
    elif isinstance(node, Items):
        for value in node.items:
            yield from scalars(value, key)
    else:
        for inner, value in node.entries.items():
            yield from scalars(value, inner)


def read_yaml(path: Path, complaints: Complaints) -> Node:
    """The marked tree of a UTF-8 file with one YAML document.

    Raises:
        StoryboardError: it cannot be read as YAML, so nothing more can be said of it.
    """
    text = _decode(path, _read_bytes(path))
    composer = _Composer(path, text, complaints)
    try:
        return composer.document()
    except yaml.MarkedYAMLError as error:
        place, what, cure = explain(error, text)
        raise _broken(Place(path, *place), what, cure) from error


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = f"storyboard {str(path)!r} cannot be read: {reason}"
        raise _broken(None, what, "name a YAML file that is there") from error
    if len(data) > LARGEST_FILE:
        what = f"the file is larger than {LARGEST_FILE >> 20} MiB"
        raise _broken(Place(path, 1, 1), what, "cut the story into several")
    return data


def _decode(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "ignore")
        what = "the file is not UTF-8"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            what = "the file is UTF-16"
        raise _broken(_place(path, before), what, "save it as UTF-8") from error
    bad = re.search("[^\t\n\r\x20-\x7e\x85\xa0-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]", text)
    if bad:
        what = f"the file holds the control character U+{ord(bad[0]):04X}"
        raise _broken(_place(path, text[: bad.start()]), what, "remove it")
    return text


def _place(path: Path, before: str) -> Place:
    """The place after the text `before`."""
    return Place(path, before.count("\n") + 1, len(before) - before.rfind("\n"))


def _broken(place: Place | None, what: str, cure: str = "") -> StoryboardError:
    return StoryboardError([Complaint(place, what, cure)])


class _Composer:
    """Builds the tree from the parser's events, innermost nodes first."""

    def __init__(self, path: Path, text: str, complaints: Complaints) -> None:
        self.path = path
        self.text = text
        self.complaints = complaints
        self.events = iter(yaml.parse(text, Loader=PARSER))
        self.anchors: dict[str, Node] = {}
        self.unused: dict[str, Place] = {}

    def document(self) -> Node:
        """The one document of the stream."""
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise _broken(Place(self.path, 1, 1), "the file is empty", "write panels:")
        root = self.node(next(self.events), 0)
        next(self.events)
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            raise _broken(
                self.place(after), "a second document starts here", "write one storyboard a file"
            )
        for anchor, place in self.unused.items():
            what = f"anchor &{anchor} is never used"
            self.complaints.add(place, what, "if it is text, put it in single quotes")
        return root

    def node(self, event: yaml.Event, depth: int) -> Node:
        """The node that starts with `event`."""
        place = self.place(event)
        if depth > DEEPEST:
            what = f"lists and mappings are nested deeper than {DEEPEST}"
            raise _broken(place, what, "write it flatter")
        assert isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.AliasEvent):
            assert event.anchor
            return self.aliased(event.anchor, place)
        self.refuse_tag(event, place)
        node = self.fresh(event, place, depth)
        if node.size > LARGEST_TREE:
            raise _broken(place, "aliases (*name) make this too large", "write less by alias")
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            self.unused[event.anchor] = place
        return node

    def fresh(self, event: yaml.NodeEvent, place: Place, depth: int) -> Node:
        """The node that is written out here."""
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, place)
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self.inner(depth))
            return Items(place, items, 64 + sum(item.size for item in items))
        return self.mapping(place, depth)

    def aliased(self, anchor: str, place: Place) -> Node:
        """The node that an alias stands for."""
        self.unused.pop(anchor, None)
        if anchor not in self.anchors:
            cure = f"if it is text, put it in single quotes, as in '*{anchor}'"
            raise _broken(place, f"*{anchor} stands for nothing before it", cure)
        return self.anchors[anchor]

    def refuse_tag(self, event: yaml.NodeEvent, place: Place) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            cure = "remove it, or put the text in single quotes"
            self.complaints.add(place, f"tag {quoted(tag)}: tags are not read", cure)

    def inner(self, depth: int) -> Iterator[Node]:
        """The nodes up to the end of a sequence or mapping."""
        for event in self.events:
            if isinstance(event, yaml.CollectionEndEvent):
                return
            yield self.node(event, depth + 1)

    def mapping(self, place: Place, depth: int) -> Entries:
        entries: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        nodes = self.inner(depth)
        size = 64
        for key, value in zip(nodes, nodes, strict=True):
            size += key.size + value.size
            if not isinstance(key, Scalar):
                cure = "if it is text, put it in single quotes"
                self.complaints.add(key.place, "a list or mapping cannot be a key", cure)
                continue
            name = key.text if key.text is not None else "null"
            if name in entries:
                what = f"{quoted(name)} is written twice, on lines {keys[name].line}"
                self.complaints.add(key.place, f"{what} and {key.place.line}", "keep one")
                continue
            entries[name], keys[name] = value, key.place
        return Entries(place, entries, keys, size)

    def scalar(self, event: yaml.ScalarEvent, place: Place) -> Scalar:
        plain_style = not event.style
        text = None if plain_style and event.value in _NULLS else event.value
        bad = _UNPRINTABLE.search(event.value)
        if bad:
            what = f"the text holds the control character U+{ord(bad[0]):04X}"
            self.complaints.add(place, what, "remove it")
            text = _UNPRINTABLE.sub("\ufffd", event.value)
        assert event.end_mark, "the parser marks every event"
        cut = plain_style and bool(_COMMENT.match(self.text, event.end_mark.index))
        return Scalar(place, text, cut, 64 + len(event.value))

    def place(self, event: yaml.Event) -> Place:
        assert event.start_mark, "the parser marks every event"
        return Place(self.path, event.start_mark.line + 1, event.start_mark.column + 1)
