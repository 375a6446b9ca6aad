"""The embedded model and the LoRAs and ControlNets shipped with it."""

from functools import cache
from pathlib import Path

from comicgen.errors import InputError

_HERE = Path(__file__).parent
MODEL = _HERE / "model"
"""The embedded model, in diffusers' folder layout."""


def lora(name: str) -> Path:
    """The shipped LoRA file of that name.

    Raises:
        InputError: none is called so; names those that are.
    """
    return _shipped("LoRA", name, _loras())


def controlnet(name: str) -> Path:
    """The shipped ControlNet folder of that name.

    Raises:
        InputError: none is called so; names those that are.
    """
    return _shipped("ControlNet", name, _controlnets())


def everything() -> dict[str, Path]:
    """The model and all its parts by the names that a storyboard gives them."""
    return {"pocket": MODEL, **_loras(), **_controlnets()}


def ships(path: Path) -> bool:
    """Whether a path leads to the model or one of its parts, by whatever name."""
    return path.resolve() in {part.resolve() for part in everything().values()}


def words(loras: frozenset[str] = frozenset()) -> frozenset[str]:
    """The words that the model was trained on, in lower case, and those that shipped LoRAs add.

    loras: their names.
    """
    return frozenset(word for word, lora in _words().items() if not lora or lora in loras)


@cache
def _words() -> dict[str, str]:
    """Each word with the LoRA that it needs, or with nothing."""
    lines = (_HERE / "words.txt").read_text(encoding="utf-8").splitlines()
    return {word: lora for word, _, lora in (line.partition(" ") for line in lines)}


def _loras() -> dict[str, Path]:
    return {path.stem: path for path in _HERE.glob("loras/*.safetensors")}


def _controlnets() -> dict[str, Path]:
    return {path.name: path for path in _HERE.glob("controlnets/*/")}


def _shipped(kind: str, name: str, parts: dict[str, Path]) -> Path:
    if name not in parts:
        names = ", ".join(sorted(parts)) or "none"
        raise InputError(
            f"no {kind} called {name!r} is shipped ({names}); "
            f"for one of your own write a path, such as {f'./{name}'!r}"
        )
    return parts[name]
