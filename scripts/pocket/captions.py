"""Random captions in the words that the pocket model was trained on.

A caption reads `[shot of] subject [and subject] place [time][, weather], style`, for example
`close-up of a sleepy fox in a blue shirt waving on the left in a forest at night, flat cartoon`.
"""

from random import Random


def listed(text: str) -> list[str]:
    return [" ".join(words.split()) for words in text.split(",")]


ANIMALS = listed(
    """fox, tiger, cat, lion, dog, bear, monkey, wolf, koala, robot, mouse, raccoon, rabbit, panda,
    skeleton, unicorn, pig, frog, alien, dragon, pumpkin man, boy, girl, old man, old woman, baby"""
)
TRADES = listed(
    """astronaut, detective, ninja, wizard, superhero, vampire, prince, princess, police officer,
    firefighter, chef, farmer, scientist, pilot, witch, king, soldier"""
)
SHIRTS = listed("red, blue, green, yellow, purple, orange, black, white, pink")
POSES = listed("standing, walking, running, waving, jumping, pointing, cheering, sitting")
PROPS = listed(
    """sword, book, balloon, umbrella, key, magnifying glass, flower, candle, shield, pizza, guitar,
    camera, crown, map, bomb, cup"""
)
MOODS = listed("angry, scared, in love, confused, surprised, sleepy, thinking")

SMALL = listed(
    """penguin, duck, turtle, snail, hedgehog, chicken, black cat, snowman, teddy bear, bicycle,
    treasure chest"""
)
LARGE = listed(
    """horse, cow, deer, kangaroo, camel, elephant, giraffe, dinosaur, car, police car, taxi, bus,
    motorcycle, train"""
)
FLYING = listed(
    """owl, bat, bird, butterfly, bee, ghost, airplane, helicopter, rocket, balloon,
    flying saucer"""
)
SWIMMING = listed("whale, shark, dolphin, octopus, fish")
SAILING = listed("sailboat, ship")
PAINTED = listed("car, bus, balloon, butterfly, fish, bird")

OUTDOORS = listed(
    """in a forest, on a city street, on a beach, in a desert, in snowy mountains, in a park,
    in a village, in front of a castle, on a rooftop, on a farm, in a graveyard"""
)
INDOORS = listed("in a cave, in a bedroom, in a kitchen, in a library, in a laboratory")
SEA, UNDERWATER, SPACE, MOON = "on the sea", "under the sea", "in space", "on the moon"
PLACES = [*OUTDOORS, *INDOORS, SEA, UNDERWATER, SPACE, MOON]
TIMES = ["", "", " at sunset", " at night", " at night", " at dawn"]
WEATHERS = ["rainy", "snowy", "foggy", "stormy"]
STYLES = ["flat cartoon", "comic book style", "comic book style", "pastel drawing"]


def with_article(noun: str) -> str:
    vowel = noun[0] in "aeiou" and not noun.startswith("uni")
    return f"{'an' if vowel else 'a'} {noun}"


def character(rng: Random) -> str:
    noun = rng.choice(ANIMALS + TRADES)
    mood = rng.choice(MOODS) if rng.random() < 0.25 else ""
    words = [noun] if mood in ("", "in love") else [mood, noun]
    if noun in ANIMALS and rng.random() < 0.7:
        words.append(f"in {with_article(rng.choice(SHIRTS))} shirt")
    words.append(rng.choice(POSES))
    if rng.random() < 0.22:
        words.append(f"with {with_article(rng.choice(PROPS))}")
    return " ".join(words + (["in love"] if mood == "in love" else []))


def things(place: str) -> list[tuple[str, str]]:
    """Subjects other than characters that fit a place, each with its verb."""
    still = [] if place in (SEA, UNDERWATER, SPACE) else SMALL
    still = still + (LARGE if place in OUTDOORS or place == MOON else [])
    flying = [] if place in (*INDOORS, UNDERWATER) else FLYING
    swimming = SWIMMING if place in (SEA, UNDERWATER) else []
    sailing = SAILING if place == SEA else []
    groups = (("", still), (" flying", flying), (" swimming", swimming), (" sailing", sailing))
    return [(noun, verb) for verb, nouns in groups for noun in nouns]


def subject(rng: Random, place: str) -> str:
    if place != SEA and rng.random() < 0.68:
        return with_article(character(rng))
    noun, verb = rng.choice(things(place))
    colour = rng.choice(SHIRTS[:3]) if noun in PAINTED and rng.random() < 0.5 else ""
    return with_article(f"{colour} {noun}{verb}".strip())


def cast(rng: Random, place: str, tall: bool) -> str:
    """One subject, placed, or (never in a tall picture) two."""
    if not tall and rng.random() < 0.4:
        left, right = subject(rng, place), subject(rng, place)
        return f"{left} on the left and {right} on the right"
    shot = rng.choices(["", "close-up of ", "wide shot of "], [0.6, 0.2, 0.2])[0]
    return shot + subject(rng, place) + rng.choice(["", "", " on the left", " on the right"])


def place_of(text: str) -> str:
    return next(place for place in PLACES if place in text)


def caption(rng: Random, tall: bool = False, place: str = "") -> str:
    """A random caption for a tall or other picture, at a given place or any."""
    place = place or rng.choice(PLACES)
    timeless = place in (*INDOORS, UNDERWATER, SPACE, MOON)
    text = f"{cast(rng, place, tall)} {place}"
    if not timeless:
        text += rng.choice(TIMES)
        text += f", {rng.choice(WEATHERS)}" if rng.random() < 0.28 else ""
    style = rng.choice(STYLES)
    return f"{style}, {text}" if rng.random() < 0.5 else f"{text}, {style}"
