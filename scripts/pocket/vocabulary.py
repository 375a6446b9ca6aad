"""The words that the pocket model learns, and what stands behind each of them.

Icons are named `set/icon` as in `art/icons.json`.
"""

from dataclasses import dataclass

SIZES = ((256, 256), (320, 192), (384, 256), (256, 384), (192, 320))
"""Width and height of the pictures that the model is trained on."""

COLOURS = {
    "red": "#e23b3b",
    "blue": "#2f6fd6",
    "green": "#2f9e55",
    "yellow": "#f4c62b",
    "purple": "#8b4fd0",
    "orange": "#f08a2a",
    "black": "#2a2a33",
    "white": "#f3f3f0",
    "pink": "#f07fb0",
}
"""Shirts, books and balloons."""


@dataclass(frozen=True)
class Figure:
    """A character: an icon of a head or a bust on a drawn body.

    skin: of the hands. A bust brings its own clothes, a head wears a shirt.
    """

    icon: str
    skin: str
    bust: bool = False


@dataclass(frozen=True)
class Thing:
    """A subject that is one icon. height: share of the picture's height in a medium shot."""

    icon: str
    habitat: str
    height: float


def _heads(skin: str, **icons: str) -> dict[str, Figure]:
    return {_noun(k): Figure(f"fluent/{icon}", skin) for k, icon in icons.items()}


def _busts(**icons: str) -> dict[str, Figure]:
    return {_noun(k): Figure(_in_set(icon), "#ffc83d", bust=True) for k, icon in icons.items()}


def _things(habitat: str, height: float, **icons: str) -> dict[str, Thing]:
    return {_noun(k): Thing(_in_set(icon), habitat, height) for k, icon in icons.items()}


def _noun(keyword: str) -> str:
    return keyword.replace("_", " ")


def _in_set(icon: str) -> str:
    return icon if "/" in icon else f"fluent/{icon}"


FIGURES = {
    **_heads("#f3922b", fox="fox", tiger="tiger-face"),
    **_heads("#f5b04f", cat="cat-face", lion="lion"),
    **_heads("#c58a55", dog="dog-face", bear="bear", monkey="monkey-face"),
    **_heads("#9aa0a8", wolf="wolf", koala="koala", robot="robot", mouse="mouse-face"),
    **_heads("#9aa0a8", raccoon="raccoon"),
    **_heads("#f4f1ee", rabbit="rabbit-face", panda="panda", skeleton="skull", unicorn="unicorn"),
    **_heads("#f5a3bb", pig="pig-face"),
    **_heads("#63b746", frog="frog", alien="alien", dragon="dragon-face"),
    **_heads("#f08a2a", pumpkin_man="jack-o-lantern"),
    **_heads("#ffc83d", boy="boy", girl="girl", old_man="old-man", old_woman="old-woman"),
    **_heads("#ffc83d", baby="baby"),
    **_busts(astronaut="astronaut", detective="detective", ninja="ninja", wizard="man-mage"),
    **_busts(superhero="man-superhero", vampire="man-vampire", prince="prince"),
    **_busts(princess="princess", police_officer="police-officer", firefighter="firefighter"),
    **_busts(chef="cook", farmer="farmer", scientist="scientist", pilot="pilot"),
    **_busts(witch="noto/woman-mage", king="person-with-crown", soldier="guard"),
}
THINGS = {
    **_things("ground", 0.42, horse="horse", cow="cow", deer="deer", kangaroo="kangaroo"),
    **_things("ground", 0.42, camel="two-hump-camel"),
    **_things("ground", 0.54, elephant="elephant", giraffe="giraffe", dinosaur="t-rex"),
    **_things("ground", 0.32, black_cat="black-cat", penguin="penguin", duck="duck"),
    **_things("ground", 0.32, turtle="turtle", snail="snail", hedgehog="hedgehog"),
    **_things("ground", 0.32, chicken="chicken", snowman="snowman", teddy_bear="teddy-bear"),
    **_things("ground", 0.32, treasure_chest="noto/treasure-chest", bicycle="bicycle"),
    **_things("air", 0.3, owl="owl", bat="bat", bird="dove", butterfly="butterfly"),
    **_things("air", 0.3, bee="honeybee", ghost="ghost", flying_saucer="flying-saucer"),
    **_things("air", 0.34, airplane="airplane", helicopter="helicopter", rocket="rocket"),
    **_things("air", 0.34, balloon="balloon"),
    **_things("sea", 0.38, whale="whale", shark="shark", dolphin="dolphin", octopus="octopus"),
    **_things("sea", 0.38, fish="fish"),
    **_things("boat", 0.44, sailboat="sailboat", ship="ship"),
    **_things("road", 0.36, car="automobile", police_car="police-car", taxi="taxi", bus="bus"),
    **_things("road", 0.36, motorcycle="motorcycle", train="locomotive"),
}
SUBJECTS = tuple(sorted({**FIGURES, **THINGS}))
VERBS = {"air": "flying", "sea": "swimming", "boat": "sailing"}
"""What things of a habitat are always doing."""
PAINTED = {"car", "bus", "balloon", "butterfly", "fish", "bird"}
"""Things that come in other colours: red is 0, of a hue circle of 256."""
HUES = {"red": 0, "green": 90, "blue": 150, "purple": 195, "pink": 230}

POSES = ("standing", "walking", "running", "waving", "jumping", "pointing", "cheering", "sitting")
SEDATE = ("standing", "walking", "running", "sitting")
"""Poses in which a hand is free to hold something."""
PROPS = {
    "sword": "fluent/dagger",
    "book": "fluent/open-book",
    "balloon": "fluent/balloon",
    "umbrella": "fluent/umbrella",
    "key": "fluent/key",
    "magnifying glass": "fluent/magnifying-glass-tilted-left",
    "flower": "fluent/tulip",
    "candle": "fluent/candle",
    "shield": "fluent/shield",
    "pizza": "fluent/pizza",
    "guitar": "fluent/guitar",
    "camera": "fluent/camera",
    "crown": "fluent/crown",
    "map": "fluent/world-map",
    "bomb": "fluent/bomb",
    "cup": "fluent/hot-beverage",
}
MOODS = {
    "angry": "fluent/anger-symbol",
    "scared": "fluent/sweat-droplets",
    "in love": "fluent/red-heart",
    "confused": "fluent/red-question-mark",
    "surprised": "fluent/red-exclamation-mark",
    "sleepy": "fluent/zzz",
    "thinking": "fluent/light-bulb",
}
"""Each shown by a sign beside the head."""

SETTINGS = {
    "forest": "in a forest",
    "city": "on a city street",
    "beach": "on a beach",
    "desert": "in a desert",
    "mountains": "in snowy mountains",
    "park": "in a park",
    "village": "in a village",
    "castle": "in front of a castle",
    "rooftop": "on a rooftop",
    "farm": "on a farm",
    "graveyard": "in a graveyard",
    "cave": "in a cave",
    "bedroom": "in a bedroom",
    "kitchen": "in a kitchen",
    "library": "in a library",
    "laboratory": "in a laboratory",
    "sea": "on the sea",
    "underwater": "under the sea",
    "space": "in space",
    "moon": "on the moon",
}
INDOORS = {"cave", "bedroom", "kitchen", "library", "laboratory"}
TIMELESS = {*INDOORS, "underwater", "space", "moon"}
"""Settings without weather or time of day; they count as day."""
TIMES = {"day": "", "sunset": "at sunset", "night": "at night", "dawn": "at dawn"}
WEATHERS = ("rainy", "snowy", "foggy", "stormy")
STYLES = {"flat": "flat cartoon", "comic": "comic book style", "pastel": "pastel drawing"}
SHOTS = {"medium": "", "close": "close-up of", "wide": "wide shot of"}
PLACES = ("left", "centre", "right")
PERSON = "sophie"
"""Of `people.py`: the one of the shipped character LoRA, which her name wakes."""
DEGRADED = "blurry, low quality"
"""What the caption of a spoilt picture says; as negative prompt it keeps pictures sharp."""
