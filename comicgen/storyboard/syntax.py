"""What to tell an author whose text YAML cannot read: nearly always, which quotes to add."""

import re

import yaml

from comicgen.storyboard.complaints import quoted

_STARTS = {
    "[": "a list",
    "{": "a mapping",
    "*": "an alias",
    "&": "an anchor",
    "!": "a tag",
    "|": "a block of text",
    ">": "a block of text",
    "%": "a directive",
    "@": "a reserved sign",
    "`": "a reserved sign",
    "-": "a list item",
    "?": "a key",
    ",": "the end of an item",
    "]": "the end of a list",
    "}": "the end of a mapping",
    "'": "quoted text",
    '"': "quoted text",
}
_VALUE = re.compile(r"""(?P<before>\s*(?:-\s+)*(?:[^\s'"\[{#:][^'"\[{#:]*:\s+)?)(?P<value>.*)""")
_WRITTEN_OUT = re.compile(r"""[\[{]\s*(?:[\[{]|[\w'"-]+\s*:(?:\s|$))""")
_INSIDE = (
    "quoted scalar",
    "double-quoted",
    "flow",
    "alias",
    "anchor",
    "simple key",
    "block scalar",
)

Explanation = tuple[tuple[int, int], str, str]
"""Line and column from 1, what is wrong, and the cure."""


def explain(error: yaml.MarkedYAMLError, text: str) -> Explanation:
    """Why the YAML text could not be read, and what to write instead."""
    mark = _where(error)
    line = text[text.rfind("\n", 0, mark.index) + 1 :].split("\n", 1)[0].rstrip("\r")
    found = _VALUE.match(line)
    assert found, "the pattern matches any line"
    at_value = (mark.line + 1, found.start("value") + 1)
    value, key = found["value"].rstrip(), found["before"].strip().removeprefix("- ")
    if "escape" in str(error.problem):
        inner = _single_quoted(value[1:].removesuffix(value[:1]))
        cure = f"put it in single quotes, {inner}, or write a block (|)"
        return at_value, "a backslash in double quotes starts an escape that YAML lacks", cure
    if "unexpected end of stream" in str(error.problem):
        what = f"the quoted text {quoted(value)} is never closed"
        return at_value, what, f"end it with {value[:1]}"
    if text[mark.index : mark.index + 1] == "\t":
        return (
            (mark.line + 1, mark.column + 1),
            "a tab stands where YAML wants spaces",
            "use spaces",
        )
    if _WRITTEN_OUT.match(value):
        return _in_flow(error, mark)
    if _starts_specially(value) and (key or value[:1] not in "-?"):
        what = f"the text starts with {value[0]}, which YAML reads as {_STARTS[value[0]]}"
        return at_value, what, _put_in_quotes(value)
    if re.search(r":(\s|$)", value):
        what = "the text holds a colon and a space, which YAML reads as a key"
        return at_value, what, _put_in_quotes(value)
    return _other(error, mark, text)


def _where(error: yaml.MarkedYAMLError) -> yaml.Mark:
    """The start of the thing that failed, where the parser was inside one; else the failure."""
    inside = error.context_mark and any(word in str(error.context) for word in _INSIDE)
    mark = error.context_mark if inside else error.problem_mark
    assert mark is not None, "the parser marks every error"
    return mark


def _starts_specially(value: str) -> bool:
    return value[:1] in _STARTS and not (value[0] in "-?" and len(value) > 1 and value[1] != " ")


def _in_flow(error: yaml.MarkedYAMLError, start: yaml.Mark) -> Explanation:
    """For a list or mapping in brackets that is meant as one, but breaks off."""
    mark = error.problem_mark or start
    what = f"the list or mapping in brackets that starts on line {start.line + 1} breaks off here"
    cure = "put its texts in single quotes, or write one key a line without brackets"
    return (mark.line + 1, mark.column + 1), what, cure


def _put_in_quotes(value: str) -> str:
    return f"put it in single quotes: {_single_quoted(value)}"


def _single_quoted(value: str) -> str:
    """The text as YAML in single quotes, shortened in the middle of a long one."""
    shown = value if len(value) <= 70 else value[:67] + "..."
    printable = "".join(char if char.isprintable() else "\ufffd" for char in shown)
    return "'" + printable.replace("'", "''") + "'"


def _other(error: yaml.MarkedYAMLError, mark: yaml.Mark, text: str) -> Explanation:
    """For lines whose text looks harmless: they do not fit the lines before them."""
    place = (mark.line + 1, mark.column + 1)
    above = text[: mark.index].rsplit("\n", 2)[-2:-1]
    if above and " #" in above[0]:
        what = "this line goes on with a text that ended at the # in the line before"
        return place, what, "put the whole text in single quotes"
    what = f"this line does not fit those before it ({error.problem})"
    return place, what, "check its indentation; text over several lines needs quotes or a block (|)"
