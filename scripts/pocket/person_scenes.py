"""Scenes with one of the people of `people.py`, which only a LoRA teaches the model."""

from random import Random

from backgrounds import background
from captions import Facts, Subject
from pen import paste, tinted
from people import EMOTIONS, NAMES, POSES, figure
from scenes import ACROSS, LIGHT, SPOTLIGHT, Scene
from vocabulary import PLACES, SETTINGS, SHOTS, STYLES, TIMELESS, TIMES

HELD_OUT_SETTINGS = ("park", "library", "rooftop", "moon", "kitchen")
"""Where the LoRA's training never shows the person, though others."""
SHOWN_SETTINGS = tuple(s for s in SETTINGS if s not in (*HELD_OUT_SETTINGS, "sea", "underwater"))
STYLE = "comic"
CLOSE_UP = 0.3
"""Share of close-ups; the rest are medium shots."""


def imagine_person(rng: Random, name: str, settings: tuple[str, ...] = SHOWN_SETTINGS) -> Facts:
    """The person in a random mood and pose in one of the settings."""
    setting = rng.choice(settings)
    time = "day" if setting in TIMELESS else rng.choice(list(TIMES))
    shot = "close" if rng.random() < CLOSE_UP else "medium"
    mood, pose = rng.choice(EMOTIONS[name]), rng.choice(POSES[name])
    subject = Subject(name, rng.choice(PLACES), pose=pose, mood=mood)
    return Facts(STYLE, setting, time, None, shot, (subject,))


def person_caption(facts: Facts, rng: Random) -> str:
    """For example `close-up of angry dee pointing on the left in a forest, comic book style`."""
    (person,) = facts.subjects
    where = "" if person.place == "centre" else f"on the {person.place}"
    words = (
        SHOTS[facts.shot],
        person.mood,
        person.noun,
        person.pose,
        where,
        SETTINGS[facts.setting],
        TIMES[facts.time],
    )
    text, style = " ".join(word for word in words if word), STYLES[facts.style]
    return f"{style}, {text}" if rng.random() < 0.5 else f"{text}, {style}"


def compose_person(seed: int, size: tuple[int, int], facts: Facts | None = None) -> Scene:
    """The scene of that seed and size (width, height): of the given facts or of random ones."""
    rng = Random(seed)
    facts = facts or imagine_person(rng, rng.choice(NAMES))
    (person,) = facts.subjects
    canvas, _ = background(facts.setting, facts.time, size, facts.style, rng)
    w, h = size
    close = facts.shot == "close"
    tall = min(h * 0.8, w) * rng.uniform(0.95, 1.05) * (1.7 if close else 1.0)
    picture = figure(person.noun, person.mood, person.pose, round(tall))
    if facts.setting not in TIMELESS:
        canvas = tinted(canvas, LIGHT[facts.time])
        picture = tinted(picture, SPOTLIGHT[facts.time])
    x = w * (ACROSS[person.place] + rng.uniform(-0.02, 0.02)) - picture.width / 2
    paste(canvas, picture, x, h * 0.08 if close else h * 0.97 - tall)
    return Scene(canvas.convert("RGB"), person_caption(facts, rng), facts)
