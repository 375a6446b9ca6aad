"""Marked nodes through the door: typed values, or complaints at their places."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from comicgen.storyboard.complaints import Complaints, nearest, quoted
from comicgen.storyboard.format import (
    Written,
    WrittenCharacter,
    WrittenControl,
    WrittenHead,
    WrittenLora,
    WrittenPanel,
    WrittenStoryboard,
)
from comicgen.storyboard.marked import Entries, Items, Node

SWITCHES = ("negative", "style", "loras", "control")
"""What null on a panel switches off; anywhere else null means that nothing is written."""

STAND_IN = "p"
_STAND_INS: Mapping[type[Written], Mapping[str, str]] = {
    WrittenPanel: {"id": STAND_IN, "prompt": STAND_IN},
    WrittenCharacter: {"prompt": STAND_IN},
}
_KEYS_OF: Mapping[type[Written], type[Written]] = {WrittenHead: WrittenStoryboard}
_INNER: Mapping[str, type[Written]] = {"loras": WrittenLora, "control": WrittenControl}

_W = TypeVar("_W", bound=Written)
_Data = dict[str, Any]


def shaped(kind: type[_W], node: Node, name: str, complaints: Complaints) -> _W | None:
    """The node as a `kind`; None if little of it can be read.

    Where something in it is wrong, that is complained about, and the rest is given back so that
    its own mistakes are found as well; STAND_IN stands for what is missing.
    """
    if not isinstance(node, Entries):
        needs = " and ".join(key for key, field in kind.model_fields.items() if field.is_required())
        cure = f"write its {needs} as key: value" if needs else "write key: value"
        complaints.add(node.place, f"{name} must be a mapping, not {_kind_of(node)}", cure)
        return None
    data = _written(node)
    value, problems = _validated(kind, data)
    for problem in problems:
        _complain(problem, kind, node, name, complaints)
    for cut in (_innermost, _outermost):
        if value is None:
            data = {**_STAND_INS.get(kind, {}), **cut(data, problems)}
            value, problems = _validated(kind, data)
    return value


def _written(node: Node) -> Any:
    """The tree as dictionaries, lists and text, without the keys that have no value."""
    if isinstance(node, Entries):
        values = ((key, _written(value)) for key, value in node.entries.items())
        return {key: value for key, value in values if value is not None or key in SWITCHES}
    if isinstance(node, Items):
        return [_written(value) for value in node.items]
    return node.text


def _validated(kind: type[_W], data: _Data) -> tuple[_W | None, Sequence[ErrorDetails]]:
    try:
        return kind.model_validate(data), ()
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def _innermost(data: _Data, problems: Sequence[ErrorDetails]) -> _Data:
    """The data without the innermost keys that are wrong."""
    for problem in problems:
        owner: Any = data
        for key in problem["loc"][:-1]:
            owner = owner.get(key) if isinstance(owner, dict) else owner[key]
        if isinstance(owner, dict):
            owner.pop(problem["loc"][-1], None)
    return data


def _outermost(data: _Data, problems: Sequence[ErrorDetails]) -> _Data:
    """The data without the keys in which something is wrong."""
    spoilt = {problem["loc"][0] for problem in problems}
    return {key: value for key, value in data.items() if key not in spoilt}


def _complain(
    problem: ErrorDetails, kind: type[Written], node: Entries, name: str, complaints: Complaints
) -> None:
    """Say one of pydantic's problems in the author's words."""
    path = [key for key in problem["loc"] if isinstance(key, str | int)]
    place = node.at(*path).place
    owner = node.at(*path[:-1])
    key = str(path[-1])
    if problem["type"] == "extra_forbidden":
        assert isinstance(owner, Entries)
        known = _INNER.get(str(path[0]), kind) if len(path) > 1 else kind
        what = f"{_field(path[:-1], name)} has the unknown key {quoted(key)}"
        complaints.add(owner.keys[key], what, _cure_of(key, known))
    elif problem["type"] == "missing":
        if isinstance(owner, Entries) and key in owner.keys:
            complaints.add(owner.keys[key], f"{key} is empty", "write its text")
        else:
            complaints.add(place, f"{_field(path[:-1], name)} has no {key}", f"write {key}: ...")
    elif problem["type"] == "comicgen":
        context = problem["ctx"]
        complaints.add(place, f"{_field(path, name)} {context['what']}", context["cure"])
    else:
        wanted = "a list" if problem["type"] == "tuple_type" else "a mapping"
        found = _kind_of(node.at(*path))
        complaints.add(place, f"{_field(path, name)} must be {wanted}, not {found}")


def _cure_of(key: str, kind: type[Written]) -> str:
    cure = nearest(key, _KEYS_OF.get(kind, kind).model_fields)
    if " " in key:
        return f"{cure}; text that holds a colon must be in single quotes"
    return cure


def _field(path: Sequence[str | int], name: str) -> str:
    """How to call what stands at a path: weight, loras item 2, or the name of the whole."""
    if not path:
        return name
    last = path[-1]
    return last if isinstance(last, str) else f"{path[-2]} item {last + 1}"


def _kind_of(node: Node) -> str:
    if isinstance(node, Entries):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    return "empty" if node.text is None else f"text {quoted(node.text)}"
