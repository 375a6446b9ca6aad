"""What the text encoders will see of a prompt, and what they will not, found without torch.

A tokenizer is rebuilt from its vocabulary, merges and special tokens as transformers 5 rebuilds
`CLIPTokenizer`: normaliser and pre-tokeniser that a `tokenizer.json` may hold are not used.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairs
from tokenizers.models import BPE

from comicgen.errors import InputError

CONTEXT = 77
ROOM = CONTEXT - 2

_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_ROLES = {
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}
_CURE = "copy this folder from the model again"


class Tokenizer:
    """Turns text into the ids that one CLIP text encoder reads."""

    def __init__(self, pairs: BytePairs, begin: int, end: int, pad: int) -> None:
        self._pairs = pairs
        self._begin, self._end, self._pad = begin, end, pad

    def ids(self, text: str) -> tuple[int, ...]:
        """The 77 ids of a text: begin, at most 75 of its own, end, and padding."""
        own = self._pairs.encode(text, add_special_tokens=False).ids[:ROOM]
        return (self._begin, *own, self._end) + (self._pad,) * (ROOM - len(own))

    def first_cut(self, text: str) -> str | None:
        """The first word that does not fit, or not wholly, into 75 tokens; None if all fit."""
        offsets = self._pairs.encode(text, add_special_tokens=False).offsets
        return _word_at(text, offsets[ROOM][0]) if len(offsets) > ROOM else None


def load_tokenizers(model_folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a diffusers SDXL folder, `tokenizer` and `tokenizer_2`.

    Each folder holds `tokenizer_config.json` and either `tokenizer.json` or `vocab.json` with
    `merges.txt` and, if it likes, `special_tokens_map.json`.

    Raises:
        InputError: a file is missing or is not what its name says.
    """
    return _load(model_folder / "tokenizer"), _load(model_folder / "tokenizer_2")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What a tokenizer's files say; `added` are tokens found in the text before it is split."""

    file: Path
    ids: dict[str, int]
    merges: list[tuple[str, str]]
    added: tuple[Mapping[str, Any], ...] = ()


def _load(folder: Path) -> Tokenizer:
    vocabulary = _vocabulary(folder)
    names, added = _special_tokens(folder, vocabulary.added)
    pairs = BytePairs(_model(vocabulary, names["unk_token"]))
    pairs.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    pairs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    pairs.add_tokens(added)
    return Tokenizer(pairs, *(_id(pairs, names[role]) for role in _ROLES if role != "unk_token"))


def _id(pairs: BytePairs, token: str) -> int:
    id_ = pairs.token_to_id(token)
    assert id_ is not None, "every special token was added"
    return id_


def _model(vocabulary: _Vocabulary, unknown: str) -> BPE:
    try:
        return BPE(
            vocabulary.ids,
            vocabulary.merges,
            unk_token=unknown,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
        )
    except Exception as error:  # the library raises no narrower class
        raise InputError(f"{vocabulary.file} does not fit together ({error}); {_CURE}") from error


def _vocabulary(folder: Path) -> _Vocabulary:
    whole, vocab, merges = (folder / n for n in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not whole.exists():
        return _Vocabulary(merges, _ids(vocab, _json(vocab)), _merges(merges))
    content = _json(whole)
    try:
        model, added = content["model"], tuple(content["added_tokens"])
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        ids, merged = _ids(whole, model["vocab"]), [(left, right) for left, right in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{whole} does not hold a CLIP tokenizer; {_CURE}") from error
    return _Vocabulary(whole, ids, merged, added)


def _ids(file: Path, content: Any) -> dict[str, int]:
    if not isinstance(content, dict) or not all(type(id_) is int for id_ in content.values()):
        raise InputError(f"{file} does not map tokens to ids; {_CURE}")
    return content


def _merges(file: Path) -> list[tuple[str, str]]:
    lines = [line for line in _text(file).split("\n") if line and not line.startswith("#version")]
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError as error:
        raise InputError(f"{file} does not hold two tokens on every line; {_CURE}") from error


def _special_tokens(
    folder: Path, added: tuple[Mapping[str, Any], ...]
) -> tuple[dict[str, str], list[AddedToken]]:
    """The text of each role's token, and all tokens that are found before the text is split.

    Where the roles describe one text differently, the last description holds, as in transformers.
    """
    file, classic = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    config = _json(file)
    try:
        if "added_tokens_decoder" in config:
            listed = {int(id_): token for id_, token in config["added_tokens_decoder"].items()}
        else:
            listed = {token["id"]: token for token in added}
            config |= _json(classic) if classic.exists() else {}
        named = {role: _fields(config.get(role) or usual) for role, usual in _ROLES.items()}
        known = {token["content"]: token for _, token in sorted(listed.items())}
        known |= {t["content"]: t for t in named.values() if t["content"] not in known}
        names = {role: token["content"] for role, token in named.items()}
        return names, [_added_token(token) for token in known.values()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} does not name the special tokens; {_CURE}") from error


def _fields(token: str | dict[str, Any]) -> dict[str, Any]:
    return {"content": token} if isinstance(token, str) else token


def _added_token(fields: Mapping[str, Any]) -> AddedToken:
    options = ("single_word", "lstrip", "rstrip", "normalized")
    given = {option: fields[option] for option in options if option in fields}
    return AddedToken(fields["content"], special=fields.get("special", True), **given)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({error}); {_CURE}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is not a JSON object; {_CURE}")
    return content


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); {_CURE}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text; {_CURE}") from error


def _word_at(text: str, cut: int) -> str:
    """The word around a character, without punctuation after it.

    Of text written without spaces, as Chinese is, it gives the first characters cut.
    """
    before = re.search(r"\S*\Z", text[:cut])
    after = re.match(r"\S*", text[cut:])
    assert before
    assert after
    if len(before[0]) + len(after[0]) > 40:
        return text[cut : cut + 20]
    word = before[0] + (after[0] or text[cut])
    bare = word.rstrip(",.;:!?")
    return bare if len(bare) > len(before[0]) else word
