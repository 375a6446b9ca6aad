"""What one scalar of a storyboard may be: text read by the rules of YAML 1.2 for its field.

Each type is an annotation for pydantic that reads text, and carries the JSON Schema of what an
editor sees. Editors read 010 as a number and, with the rules of YAML 1.1, 16:9 as 969 and 1e-4 as
a string, so the schema lets those through.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from comicgen.errors import InputError
from comicgen.sizes import read_aspect
from comicgen.storyboard.complaints import nearest, quoted
from comicgen.storyboard.samplers import SAMPLERS, SPELLINGS, known_elsewhere, spelled

LONGEST_ID = 64
LARGEST_SEED = 2**32 - 1

_WHOLE = r"[-+]?[0-9]{1,30}|0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}"
_DECIMAL = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)),
}
_OURS = {"history"}


def bad(what: str, cure: str = "") -> PydanticCustomError:
    """A mistake in the author's words; `what` goes on from the name of the field."""
    return PydanticCustomError("comicgen", "{what}", {"what": what, "cure": cure})


def text(value: object) -> str:
    """Any text; a list or mapping mostly is text that lacks quotes."""
    if isinstance(value, str):
        return value
    cure = "put text that holds { [ or a colon in single quotes"
    raise bad(f"must be text, not {_collection(value)}", cure)


def _collection(value: object) -> str:
    return "a mapping" if isinstance(value, dict) else "a list"


def one_line(value: object) -> str:
    """Text with its white space folded."""
    return " ".join(text(value).split())


def some_line(value: object) -> str:
    """Text with its white space folded, and something in it."""
    line = one_line(value)
    if not line:
        raise bad("is empty", "write some text")
    return line


def block(value: object) -> str:
    """Text of several lines without white space around it."""
    return text(value).strip()


def whole(low: int, high: int) -> Callable[[object], int]:
    """A reader of whole numbers from low to high."""

    def read(value: object) -> int:
        wanted, word = _wanted(f"a whole number from {low} to {high}", value)
        if not re.fullmatch(_WHOLE, word):
            raise bad(wanted, _plain_number(word, _WHOLE))
        number = int(word, 0) if word[:2] in ("0o", "0x") else int(word)
        if not low <= number <= high:
            raise bad(wanted)
        return number

    return read


def decimal(low: float, high: float) -> Callable[[object], float]:
    """A reader of finite numbers from low to high."""

    def read(value: object) -> float:
        wanted, word = _wanted(f"a number from {low:g} to {high:g}", value)
        if not re.fullmatch(_DECIMAL, word):
            raise bad(wanted, _plain_number(word, _DECIMAL))
        if not low <= float(word) <= high:
            raise bad(wanted)
        return float(word) or 0.0

    return read


def _wanted(kind: str, value: object) -> tuple[str, str]:
    """What a number must be, and the word that is to be one."""
    if not isinstance(value, str):
        raise bad(f"must be {kind}, not {_collection(value)}")
    return f"must be {kind}, not {quoted(value)}", value


def _plain_number(word: str, pattern: str) -> str:
    """The cure for digits that are set apart by _ or a decimal comma."""
    for cured in (word.replace("_", ""), word.replace(",", ".")):
        if re.fullmatch(pattern, cured):
            return f"write {cured}"
    return ""


def name_fault(word: str) -> str | None:
    """What is wrong with a name that is in NFC, if anything."""
    if not re.fullmatch(r"[\w-]+", word):
        return f"{quoted(word)} may hold letters, digits, - and _ only"
    if len(word.encode()) > LONGEST_ID:
        return f"{quoted(word)} is longer than {LONGEST_ID} bytes in UTF-8"
    return None


def panel_id(value: object) -> str:
    """A panel's id; it names a folder on every system and a word of a command line."""
    word = unicodedata.normalize("NFC", text(value))
    if fault := name_fault(word):
        raise bad(fault)
    if word[0] in "-_":
        raise bad(f"{quoted(word)} must start with a letter or digit, so that no option is like it")
    if word.casefold() in _RESERVED:
        raise bad(f"{quoted(word)} is a device on Windows, which cannot hold such a folder")
    if word.casefold() in _OURS:
        raise bad(f"{quoted(word)} is the name of a folder that comicgen keeps", "choose another")
    return word


def aspect(value: object) -> str:
    """Width to height, as in 16:9 or 16/9, always given back with a colon."""
    word = "".join(text(value).split()).replace("/", ":")
    try:
        read_aspect(word)
    except InputError as error:
        raise bad(f"must be width to height: {error}") from error
    return word


def sampler(value: object) -> str:
    """The sampler's name as in SAMPLERS."""
    ours = ", ".join(SAMPLERS)
    word = spelled(text(value))
    if word in SAMPLERS:
        return word
    if known_elsewhere(word):
        raise bad(f"{quoted(text(value))} is not supported", f"choose one of {ours}")
    question = nearest(word, SAMPLERS).removeprefix(f"known are {ours}")
    raise bad(f"{quoted(text(value))} is not known", f"{question} ours are {ours}".strip())


def precision(value: object) -> str:
    """One of the three types that weights can have."""
    word = text(value)
    if word not in PRECISIONS:
        raise bad(f"{quoted(word)} is not known", f"choose one of {', '.join(PRECISIONS)}")
    return word


PRECISIONS = ("fp32", "fp16", "bf16")


def _schema(kinds: str, **rules: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": kinds.split(), **rules})


def _whole_schema(low: int, high: int) -> WithJsonSchema:
    return _schema("integer string", minimum=low, maximum=high, pattern=f"^(?:{_WHOLE})$")


def _decimal_schema(low: float, high: float) -> WithJsonSchema:
    return _schema("number string", minimum=low, maximum=high, pattern=f"^(?:{_DECIMAL})$")


# JSON Schema's \w knows ASCII only, so this names the ASCII characters that a name may not hold.
_NAME_PATTERN = r"[^\x00-\x2c./:-@\[-\^`{-\x7f]+"
_SOME = r"\S"
_TEXT = "string number boolean"

Line = Annotated[str, PlainValidator(one_line), _schema(_TEXT)]
SomeLine = Annotated[str, PlainValidator(some_line), _schema(_TEXT, pattern=_SOME)]
Block = Annotated[str, PlainValidator(block), _schema(_TEXT)]
Name = Annotated[str, _schema("string integer", pattern=f"^{_NAME_PATTERN}$", maxLength=LONGEST_ID)]
PanelId = Annotated[
    str,
    PlainValidator(panel_id),
    _schema("string integer", pattern=f"^(?![-_]){_NAME_PATTERN}$", maxLength=LONGEST_ID),
]
Aspect = Annotated[
    str,
    PlainValidator(aspect),
    _schema("string integer", pattern=r"^\s*[0-9.]+\s*[:/]\s*[0-9.]+\s*$"),
]
SizeText = Annotated[
    str, PlainValidator(one_line), _schema("string", pattern=r"^\s*[0-9]+\s*[xX]\s*[0-9]+\s*$")
]
Seed = Annotated[int, PlainValidator(whole(0, LARGEST_SEED)), _whole_schema(0, LARGEST_SEED)]
Steps = Annotated[int, PlainValidator(whole(1, 150)), _whole_schema(1, 150)]
Count = Annotated[int, PlainValidator(whole(1, 99)), _whole_schema(1, 99)]
Guidance = Annotated[float, PlainValidator(decimal(0, 100)), _decimal_schema(0, 100)]
LoraWeight = Annotated[float, PlainValidator(decimal(-10, 10)), _decimal_schema(-10, 10)]
ControlWeight = Annotated[float, PlainValidator(decimal(0, 10)), _decimal_schema(0, 10)]
Share = Annotated[float, PlainValidator(decimal(0, 1)), _decimal_schema(0, 1)]
Sampler = Annotated[str, PlainValidator(sampler), WithJsonSchema({"enum": list(SPELLINGS)})]
Precision = Annotated[str, PlainValidator(precision), WithJsonSchema({"enum": list(PRECISIONS)})]
