"""From the marked tree to the typed storyboard."""

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comicgen.errors import Place
from comicgen.storyboard.complaints import Complaints, quoted
from comicgen.storyboard.files import FoundModel, find_model
from comicgen.storyboard.format import Settings, WrittenCharacter, WrittenHead, WrittenPanel
from comicgen.storyboard.levels import OURS, Level
from comicgen.storyboard.marked import Entries, Items, Node, Scalar, scalars
from comicgen.storyboard.panels import Character, PanelReader
from comicgen.storyboard.scalars import name_fault
from comicgen.storyboard.shape import shaped
from comicgen.storyboard.story import Panel, Storyboard
from comicgen.storyboard.vocabulary import warn_of_words

_PARTS = ("defaults", "characters", "panels")
_TEXTS = ("prompt", "negative", "style", "title", "caption")


def read_storyboard(path: Path, root: Entries, complaints: Complaints) -> Storyboard:
    """The storyboard in `root`; every mistake in it is among the complaints that are raised.

    Raises:
        StoryboardError: there is a complaint, found here or before.
    """
    _warn_of_comments(root, complaints)
    head = _head(root, complaints)
    base = Path(os.path.abspath(path)).parent
    model = _model(base, head, root, complaints)
    shared = (_defaults(root, complaints), Level(OURS, root))
    reader = PanelReader(base, model, shared, complaints)
    _read_characters(root, reader)
    panels = _panels(root, reader)
    complaints.raise_any()
    assert model, "a model that is not found is a complaint"
    warn_of_words(model.model, panels, complaints)
    return Storyboard(
        path=base / path.name,
        title=head.title,
        model=model.model,
        seed=head.seed,
        precision=head.precision,
        panels=panels,
        warnings=complaints.warnings(),
    )


def _warn_of_comments(root: Node, complaints: Complaints) -> None:
    for key, scalar in scalars(root):
        if scalar.cut and key in _TEXTS:
            what = f"what follows # is no part of this {key}, but a comment"
            complaints.warn(scalar.place, what, "if it is text, put the whole in single quotes")


def _head(root: Entries, complaints: Complaints) -> WrittenHead:
    entries = {key: node for key, node in root.entries.items() if key not in _PARTS}
    head = shaped(WrittenHead, replace(root, entries=entries), "the storyboard", complaints)
    return head or WrittenHead()


def _model(
    base: Path, head: WrittenHead, root: Entries, complaints: Complaints
) -> FoundModel | None:
    with complaints.at(root.at("model").place):
        return find_model(base, head.model)
    return None


def _defaults(root: Entries, complaints: Complaints) -> Level:
    node = _part(root, "defaults")
    if node is None:
        return Level(Settings(), root)
    settings = shaped(Settings, node, "defaults", complaints) or Settings()
    return Level(settings, node if isinstance(node, Entries) else root)


def _part(root: Entries, key: str) -> Node | None:
    """The node under a key, None if nothing is written there."""
    node = root.entries.get(key)
    return None if isinstance(node, Scalar) and node.text is None else node


def _read_characters(root: Entries, reader: PanelReader) -> None:
    node = _part(root, "characters")
    if isinstance(node, Entries):
        for name, inner in node.entries.items():
            _read_character(name, node.keys[name], inner, reader)
    elif node is not None:
        cure = "write name: {prompt: ...}"
        reader.complaints.add(node.place, "characters must be a mapping", cure)


def _read_character(name: str, place: Place, node: Node, reader: PanelReader) -> None:
    """Remember a character, and complain about it even if nobody mentions it."""
    name = unicodedata.normalize("NFC", name)
    if fault := name_fault(name):
        reader.complaints.add(place, f"the character's name {fault}")
    if name in reader.characters:
        what = f"the character {quoted(name)} is there twice, written with other code points"
        reader.complaints.add(place, what, "rename one of them")
    label = f"character {quoted(name)}"
    written = shaped(WrittenCharacter, node, label, reader.complaints)
    words, loras = "", []
    if written and isinstance(node, Entries):
        words = reader.word(written.prompt, node.at("prompt").place).text
        places = (
            node.at("loras", index, "file").place for index in range(len(written.loras or ()))
        )
        loras = list(zip(written.loras or (), places, strict=True))
    for lora, where in loras:
        reader.check_lora(lora, where)
    reader.characters[name] = Character(words, tuple(loras))


def _panels(root: Entries, reader: PanelReader) -> tuple[Panel, ...]:
    node = _part(root, "panels")
    if not isinstance(node, Items) or not node.items:
        where = node.place if node else root.place
        reader.complaints.add(
            where, "panels must be a list of at least one panel", "write - id: ..."
        )
        return ()
    read = [_panel(index, inner, reader) for index, inner in enumerate(node.items, 1)]
    _check_ids(node.items, reader.complaints)
    return tuple(panel for panel in read if panel)


def _panel(index: int, node: Node, reader: PanelReader) -> Panel | None:
    label = f"panel {index}"
    written = shaped(WrittenPanel, node, label, reader.complaints)
    return reader.read(written, node) if written and isinstance(node, Entries) else None


def _check_ids(nodes: Sequence[Node], complaints: Complaints) -> None:
    """Ids name folders, and some systems do not tell apart what differs in case only."""
    seen: dict[str, Scalar] = {}
    for node in nodes:
        id_ = node.at("id") if isinstance(node, Entries) and "id" in node.entries else None
        if not isinstance(id_, Scalar) or not id_.text:
            continue
        first = seen.setdefault(unicodedata.normalize("NFC", id_.text).casefold(), id_)
        if first is not id_:
            lines = f"on lines {first.place.line} and {id_.place.line}"
            what = f"id {quoted(id_.text)} is used twice, {lines}"
            if first.text != id_.text:
                both = f"ids {quoted(first.text)} and {quoted(id_.text)}"
                what = f"{both}, {lines}, name the same folder on some systems"
            complaints.add(id_.place, what, "choose another")
