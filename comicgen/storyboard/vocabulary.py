"""Which words of a story the embedded model never saw: it draws them poorly or not at all."""

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache

from comicgen import pocket
from comicgen.errors import Place
from comicgen.storyboard.complaints import Complaints, quoted
from comicgen.storyboard.story import Model, Panel

MOST_WORDS = 12
MOST_PANELS = 3
"""So many are named; of the rest it is told how many there are."""
_APOSTROPHES = (
    "`\N{ACUTE ACCENT}\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}"
    "\N{PRIME}\N{FULLWIDTH APOSTROPHE}"
)
_UNSEEN = ["\N{SOFT HYPHEN}", *map(chr, range(0xFE00, 0xFE10))]  # the latter: variation selectors
_PLAIN = str.maketrans(dict.fromkeys(_APOSTROPHES, "'") | dict.fromkeys(_UNSEEN))


def warn_of_words(model: Model, panels: Sequence[Panel], complaints: Complaints) -> None:
    """Warn once of all words that the embedded model does not know; other models have no list."""
    unknown = _unknown(panels) if pocket.ships(model.folder) else {}
    if unknown:
        named = [f"{quoted(word)} ({_first(MOST_PANELS, [*ids])})" for word, ids in unknown.items()]
        what = f"the embedded model does not know {_first(MOST_WORDS, named)}"
        place = next(place for places in unknown.values() for place in places.values())
        complaints.warn(place, what, "comicgen/pocket/README.md#what-it-draws names what it knows")


def _unknown(panels: Sequence[Panel]) -> Mapping[str, Mapping[str, Place]]:
    """Each unknown word with the ids and places of its panels, in the order of the story.

    A panel with a LoRA of the author's own is left out: which words that LoRA knows is not known.
    """
    ships, known, unknown_in = cache(pocket.ships), cache(pocket.words), cache(_unknown_in)
    unknown: dict[str, dict[str, Place]] = {}
    for panel in panels:
        if all(ships(lora.file) for lora in panel.loras):
            words = known(frozenset(lora.file.stem for lora in panel.loras))
            for part in f"{panel.prompt} {panel.negative or ''}".split():
                for word in unknown_in(words, part):
                    unknown.setdefault(word, {})[panel.id] = panel.place
    return unknown


def _unknown_in(known: frozenset[str], part: str) -> Sequence[str]:
    """The unknown words in a part of a prompt that holds no white space."""
    return [word for word in _words(part) if word not in known]


def _words(part: str) -> Sequence[str]:
    """Runs of letters of any script with their marks, in lower case, without a possessive 's.

    A run that holds a digit, as in 256x256, is none, nor is a single Latin letter, as in T-shirt.
    """
    text = unicodedata.normalize("NFC", part.translate(_PLAIN).lower())
    runs = "".join(char if _in_word(char) else " " for char in text).split()
    words = (run.strip("'").removesuffix("'s") for run in runs)
    return [word for word in words if _is_word(word)]


def _is_word(run: str) -> bool:
    letters, digits = (any(map(is_one, run)) for is_one in (str.isalpha, str.isnumeric))
    return letters and not digits and not (len(run) == 1 and run.isascii())


def _in_word(char: str) -> bool:
    return char == "'" or unicodedata.category(char)[0] in "LMN"


def _first(most: int, names: Sequence[str]) -> str:
    """The first names, and how many there are beyond them."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
