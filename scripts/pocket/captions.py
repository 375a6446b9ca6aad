"""What a scene shows, and the caption that says so.

    python scripts/pocket/captions.py words comicgen/pocket/words.txt

writes every word that the shipped model knows, one in a line, with the LoRA that it needs.

A caption reads `[shot of] subject [and subject] setting [time][, weather], style`, for example
`close-up of a sleepy fox in a blue shirt waving on the left in a forest at night, flat cartoon`.
"""

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal
from zlib import crc32

import people
from plainly import plainly
from vocabulary import (
    COLOURS,
    DEGRADED,
    FIGURES,
    HUES,
    INDOORS,
    MOODS,
    PAINTED,
    PERSON,
    PLACES,
    POSES,
    PROPS,
    SEDATE,
    SETTINGS,
    SHOTS,
    STYLES,
    SUBJECTS,
    THINGS,
    TIMELESS,
    TIMES,
    VERBS,
    WEATHERS,
)

BINDING = 0.3
"""Share of scenes with two subjects."""
FUNCTION_WORDS = ("a", "an", "and", "at", "by", "in", "of", "on", "the", "to", "up", "with")
"""Known to every reader of a prompt, whether captions use them or not."""
STYLE_SHARES = (0.3, 0.4, 0.3)
"""How often each of the `STYLES` comes."""


@dataclass(frozen=True)
class Subject:
    """One of the cast. colour: of a figure's shirt, or of a whole thing that is painted."""

    noun: str
    place: str = "centre"
    colour: str | None = None
    pose: str | None = None
    mood: str | None = None
    prop: str | None = None

    @property
    def is_figure(self) -> bool:
        return self.noun in FIGURES


@dataclass(frozen=True)
class Facts:
    """All that a caption tells of a scene; keys of the tables in `vocabulary`."""

    style: str
    setting: str
    time: str
    weather: str | None
    shot: str
    subjects: tuple[Subject, ...]


def held_out(noun: str, setting: str) -> bool:
    """Whether the two are never shown together in training: about a tenth of all pairs.

    What lives in few settings is shown in all of them.
    """
    return len(_settings(noun)) > 3 and crc32(f"{setting}: {noun}".encode()) % 10 == 0


def fitting(setting: str) -> list[str]:
    """The subjects that can be found in a setting."""
    return [noun for noun in SUBJECTS if _fits(noun, setting)]


@cache
def _settings(noun: str) -> list[str]:
    return [setting for setting in SETTINGS if _fits(noun, setting)]


def _frequency(noun: str) -> float:
    """So that all figures are seen equally often, and all things a little less."""
    return (1.5 if noun in FIGURES else 1.0) / len(_settings(noun))


def _fits(noun: str, setting: str) -> bool:
    wet = setting in ("sea", "underwater")
    if noun in FIGURES:
        return setting != "sea"
    match THINGS[noun].habitat:
        case "ground":
            small = THINGS[noun].height < 0.4
            return not wet and setting != "space" and (small or setting not in INDOORS)
        case "road":
            return not wet and setting != "space" and setting not in INDOORS
        case "air":
            return setting not in INDOORS and setting != "underwater"
        case "sea":
            return wet
        case _:
            return setting == "sea"


Share = Literal["training", "unseen", "apart"]
"""Of all scenes: what is trained on; what never is, as a whole, although every part of it is; and
subjects where training never shows them."""
UNSEEN = 8
"""One scene in so many is unseen."""
_OTHER_SIDE = {"left": "right", "right": "left"}


def imagine(rng: Random, size: tuple[int, int], share: Share = "training") -> Facts:
    """A random scene of that share for a picture of that size; `apart` has one subject only."""
    while True:
        facts = _imagined(rng, size, share == "apart")
        if share == "apart" or unseen(facts) == (share == "unseen"):
            return facts


def unseen(facts: Facts) -> bool:
    """Whether no training shows just this scene, nor its mirror image."""
    turned = tuple(
        replace(subject, place=_OTHER_SIDE.get(subject.place, subject.place))
        for subject in reversed(facts.subjects)
    )
    key = min(repr(facts), repr(replace(facts, subjects=turned)))
    return crc32(key.encode()) % UNSEEN == 0


def _imagined(rng: Random, size: tuple[int, int], apart: bool) -> Facts:
    style = rng.choices(list(STYLES), STYLE_SHARES)[0]
    if apart:
        noun, setting = rng.choice(_pairs_apart())
        nouns = [noun]
    else:
        setting = rng.choice(list(SETTINGS))
        nouns = [noun for noun in fitting(setting) if not held_out(noun, setting)]
    timeless = setting in TIMELESS
    time = "day" if timeless else rng.choice(list(TIMES))
    weather = rng.choice(WEATHERS) if not timeless and rng.random() < 0.25 else None
    two = not apart and size[0] >= size[1] and rng.random() < BINDING
    shot = "medium" if two else rng.choices(list(SHOTS), [0.6, 0.22, 0.18])[0]
    places = ("left", "right") if two else (rng.choice(PLACES),)
    return Facts(
        style, setting, time, weather, shot, tuple(_subject(rng, nouns, each) for each in places)
    )


@cache
def _pairs_apart() -> list[tuple[str, str]]:
    return [(n, setting) for setting in SETTINGS for n in fitting(setting) if held_out(n, setting)]


def _subject(rng: Random, nouns: list[str], place: str) -> Subject:
    noun = rng.choices(nouns, [_frequency(noun) for noun in nouns])[0]
    if noun not in FIGURES:
        colour = rng.choice(list(HUES)) if noun in PAINTED and rng.random() < 0.5 else None
        return Subject(noun, place, colour)
    shirted = not FIGURES[noun].bust and rng.random() < 0.75
    prop = rng.choice(list(PROPS)) if rng.random() < 0.22 else None
    return Subject(
        noun,
        place,
        colour=rng.choice(list(COLOURS)) if shirted else None,
        pose=rng.choice(SEDATE if prop else POSES),
        mood=rng.choice(list(MOODS)) if rng.random() < 0.25 else None,
        prop=prop,
    )


def mirrored(text: str) -> str:
    """The caption of a scene turned left to right."""
    swapped = text.replace("on the left", "on the\0").replace("on the right", "on the left")
    return swapped.replace("on the\0", "on the right")


def caption(facts: Facts, rng: Random) -> str:
    """One of the ways to say what is to be seen."""
    cast = " and ".join(_phrase(subject, rng) for subject in facts.subjects)
    text = f"{SHOTS[facts.shot]} {cast} {SETTINGS[facts.setting]} {_time(facts.time, rng)}".strip()
    if facts.weather:
        text += rng.choice((f", {facts.weather}", _WEATHER_WORDS[facts.weather]))
    style = STYLES[facts.style]
    return f"{style}, {text}" if rng.random() < 0.5 else f"{text}, {style}"


_WEATHER_WORDS = {
    "rainy": " in the rain",
    "snowy": " in the snow",
    "foggy": " in fog",
    "stormy": " in a storm",
}
_OTHER_TIMES = {"sunset": "in the evening", "dawn": "in the morning"}


def _time(time: str, rng: Random) -> str:
    other = _OTHER_TIMES.get(time)
    return other if other and rng.random() < 0.25 else TIMES[time]


def _phrase(subject: Subject, rng: Random) -> str:
    words = [subject.noun]
    if subject.is_figure:
        if subject.mood and subject.mood != "in love":
            words.insert(0, subject.mood)
        if subject.colour:
            words.append(f"in {with_article(subject.colour)} shirt")
        if subject.pose:
            words.append(subject.pose)
        if subject.prop:
            words.append(f"{rng.choice(('with', 'holding'))} {with_article(subject.prop)}")
        if subject.mood == "in love":
            words.append("in love")
    else:
        if subject.colour:
            words.insert(0, subject.colour)
        if verb := VERBS.get(THINGS[subject.noun].habitat):
            words.append(verb)
    if subject.place != "centre":
        words.append(f"on the {subject.place}")
    return with_article(" ".join(words))


def with_article(noun: str) -> str:
    vowel = noun[0] in "aeiou" and not noun.startswith("uni")
    return f"{'an' if vowel else 'a'} {noun}"


def words() -> dict[str, str]:
    """Every word that the shipped model knows, sorted, with the LoRA that it needs, if any."""
    tables = (SUBJECTS, COLOURS, HUES, POSES, PROPS, MOODS, WEATHERS, FUNCTION_WORDS)
    spoken = (SETTINGS, TIMES, STYLES, SHOTS, VERBS, _WEATHER_WORDS, _OTHER_TIMES)
    texts = [text for table in tables for text in table]
    texts += [text for table in spoken for text in table.values()]
    texts += [DEGRADED, "shirt", "holding", "on the left", "on the right"]
    person = (PERSON, *people.EMOTIONS[PERSON], *people.POSES[PERSON])
    known = dict.fromkeys(_words_in(person), PERSON) | dict.fromkeys(_words_in(texts), "")
    return dict(sorted(known.items()))


def _words_in(texts: Iterable[str]) -> list[str]:
    return re.findall("[a-z]+", " ".join(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the words that the shipped model knows.")
    parser.add_argument("action", choices=["words"])
    parser.add_argument("file", type=Path)
    lines = [f"{word} {lora}".strip() for word, lora in words().items()]
    parser.parse_args().file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    with plainly():
        main()
