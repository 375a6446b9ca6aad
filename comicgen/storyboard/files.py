"""The files that a storyboard names: found beside it, looked at and digested, without torch."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from comicgen import pocket
from comicgen.digests import digest_file, digest_files
from comicgen.errors import CandidateError, InputError
from comicgen.images import read_rgb
from comicgen.prompts import Tokenizer, load_tokenizers
from comicgen.sizes import Size
from comicgen.storyboard.complaints import quoted
from comicgen.storyboard.story import Model
from comicgen.weights import ModelFolder, read_controlnet, read_lora, read_model

CHECKPOINTS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
FURTHEST_ASPECT = 1.02
"""A control image may differ from its panel by this factor in width over height."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The storyboard's model, what its headers tell, and its tokenizers."""

    model: Model
    folder: ModelFolder
    tokenizers: tuple[Tokenizer, Tokenizer]

    def first_cut(self, text: str) -> str | None:
        """The first word that one of the text encoders would not see; None if both see all."""
        cuts = (tokenizer.first_cut(text) for tokenizer in self.tokenizers)
        return next(filter(None, cuts), None)


@dataclass(frozen=True, slots=True)
class FoundLora:
    """A LoRA file that fits the model."""

    file: Path
    digest: str


@dataclass(frozen=True, slots=True)
class FoundImage:
    """A control image; `unreadable` says why its pixels cannot be decoded, else `size` is known."""

    file: Path
    digest: str
    size: Size | None = None
    unreadable: str = ""


def find_model(base: Path, written: str) -> FoundModel:
    """The storyboard's model, as a diffusers folder seen from the folder `base`.

    Raises:
        InputError: it is not there, or is no SDXL model.
    """
    folder = pocket.MODEL if written == "pocket" else _beside(base, written)
    if written.lower().endswith(CHECKPOINTS):
        raise InputError(f"model {quoted(written)} is a single file; {_GIVE_FOLDER}")
    if not os.path.isdir(folder):
        hub = written.count("/") == 1 and not written.startswith((".", "/", "~"))
        what = "is no folder here, and is not fetched from a hub" if hub else "is no folder"
        raise InputError(f"model {quoted(written)} {what}; {_GIVE_FOLDER}")
    headers, tokenizers = read_model(folder), load_tokenizers(folder)
    model = Model(written, folder, _digested(folder, headers.files))
    return FoundModel(model, headers, tokenizers)


_GIVE_FOLDER = "give pocket, or the path of a model's diffusers folder"


def find_lora(base: Path, model: ModelFolder | None, written: str) -> FoundLora:
    """A LoRA file; it is compared with the model if there is one.

    Raises:
        InputError: it is not there, or does not fit the model.
    """
    file = pocket.lora(written) if _is_bare(written) else _beside(base, written)
    _check_file("LoRA", written, file)
    if file.suffix.lower() != ".safetensors":
        raise InputError(f"LoRA {quoted(written)} is no .safetensors file; only those are read")
    if model:
        read_lora(file, model)
    return FoundLora(file, _digested(file))


def find_controlnet(base: Path, model: ModelFolder | None, written: str) -> Model:
    """A ControlNet's folder; it is compared with the model if there is one.

    Raises:
        InputError: it is not there, or does not fit the model.
    """
    folder = pocket.controlnet(written) if _is_bare(written) else _beside(base, written)
    if not os.path.isdir(folder):
        raise InputError(f"ControlNet {quoted(written)} is no folder; give its diffusers folder")
    files = read_controlnet(folder, model).files if model else ()
    return Model(written, folder, _digested(folder, files))


def find_image(base: Path, written: str) -> FoundImage:
    """A control image, of which every pixel was looked at.

    Raises:
        InputError: it is not there, or is blank.
    """
    file = _beside(base, written)
    _check_file("control image", written, file)
    digest = _digested(file)
    try:
        image = read_rgb(file)
    except CandidateError as error:
        return FoundImage(file, digest, unreadable=str(error).replace(str(file), written))
    except InputError as error:
        raise InputError(f"control image {quoted(written)} {error}") from error
    if image.getcolors(maxcolors=1):
        raise InputError(
            f"control image {quoted(written)} is blank: all of it has one colour; "
            "give one that shows something, or leave out control"
        )
    return FoundImage(file, digest, Size(*image.size))


def fits(image: Size, panel: Size) -> bool:
    """Whether an image can be resized to a panel's size without being stretched."""
    factor = image.ratio / panel.ratio
    return 1 / FURTHEST_ASPECT <= factor <= FURTHEST_ASPECT


def _is_bare(written: str) -> bool:
    return "/" not in written and not Path(written).suffix


def _beside(base: Path, written: str) -> Path:
    """The path as written, from the folder `base`; ~ is the home folder."""
    try:
        return base / Path(written).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{quoted(written)} names a home folder that is not known; write the path out"
        ) from error


# os.path answers False, where Path raises, for names that no file system takes.
def _check_file(kind: str, written: str, file: Path) -> None:
    if os.path.isdir(file):
        raise InputError(f"{kind} {quoted(written)} is a folder; give a file")
    if not os.path.isfile(file):
        raise InputError(f"{kind} {quoted(written)} is not there; looked for at {str(file)!r}")


def _digested(path: Path, files: Iterable[Path] | None = None) -> str:
    """The digest of a file, or of these files of a folder."""
    try:
        return digest_file(path) if files is None else digest_files(path, files)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read: {error.strerror}; mend its permissions"
        ) from error
