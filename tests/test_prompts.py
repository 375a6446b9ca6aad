"""Prompts become the ids that transformers would give, and cut words are named."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CLIPTokenizer

import comicgen
from comicgen.errors import InputError
from comicgen.prompts import load_tokenizers

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"
PROMPTS = [
    "",
    " ",
    "a farmer in a blue shirt walking on the left on a beach at night, comic book style",
    "A FARMER, Walking; NOW! it's the keeper's lamp, they'll say 'we've come'",
    "  many \t spaces\n\nand\u3000lines\u00a0here  ",
    "一个戴红帽子的女孩在海边的悬崖上散步\uff0c漫画风格",
    "灯塔 lighthouse 灯塔",
    "rocket 🚀 family 👨‍👩‍👧 flag 🇨🇳 skin 👍🏽",
    "!!! wow!? (best quality:1.2) [a|b] {x} <lora:mara:0.8> #1 100% 3.14 5e-4",
    "! wow ! hey!",
    "mid <|endoftext|> dle <|startoftext|> <|ENDOFTEXT|>",
    "Café Cafe\u0301 İstanbul \u017ftraße ǅ Ωmega \u200b zero \ufeff width",
    "\x00\x07 control \x1f\x85 characters",
    "word " * 200,
    "灯" * 200,
    "mixed🚀" * 40,
]


def classic(folder: Path, name: str, token: dict[str, object] | None) -> None:
    """Write a tokenizer folder of the files that SDXL was published with."""
    content = json.loads((POCKET / name / "tokenizer.json").read_text(encoding="utf-8"))
    pad = json.loads((POCKET / name / "tokenizer_config.json").read_text())["pad_token"]
    target = folder / name
    target.mkdir()
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    special = {
        "bos_token": {"content": "<|startoftext|>", **(token or {})},
        "eos_token": {"content": "<|endoftext|>", **(token or {})},
        "unk_token": {"content": "<|endoftext|>", **(token or {})},
        "pad_token": pad,
    }
    config: dict[str, object] = {"model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}
    if token is None:
        config |= {role: text["content"] for role, text in special.items() if role != "pad_token"}
        config["pad_token"] = pad
        config["added_tokens_decoder"] = {
            str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in content["added_tokens"]
        }
    else:
        (target / "special_tokens_map.json").write_text(json.dumps(special))
    (target / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (target / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def classic_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classic")
    token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    classic(folder, "tokenizer", token)
    classic(folder, "tokenizer_2", token)
    return folder


@pytest.fixture(scope="module")
def resaved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resaved")
    classic(folder, "tokenizer", None)
    classic(folder, "tokenizer_2", None)
    return folder


def theirs(tokenizer: CLIPTokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, padding="max_length", max_length=77, truncation=True)["input_ids"])


@pytest.mark.parametrize("style", ["tokenizer.json", "classic", "resaved"])
@pytest.mark.parametrize("place", [0, 1])
def test_ids_equal_those_of_transformers(
    style: str, place: int, classic_model: Path, resaved_model: Path
) -> None:
    folder = {"tokenizer.json": POCKET, "classic": classic_model, "resaved": resaved_model}[style]
    tokenizer = load_tokenizers(folder)[place]
    reference = CLIPTokenizer.from_pretrained(folder / ["tokenizer", "tokenizer_2"][place])

    assert [tokenizer.ids(text) for text in PROMPTS] == [theirs(reference, t) for t in PROMPTS]


REFERENCES = tuple(CLIPTokenizer.from_pretrained(POCKET / n) for n in ("tokenizer", "tokenizer_2"))
OURS = load_tokenizers(POCKET)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_has_the_ids_of_transformers(text: str) -> None:
    assert [t.ids(text) for t in OURS] == [theirs(reference, text) for reference in REFERENCES]


def test_the_second_tokenizer_pads_with_an_exclamation_mark() -> None:
    first, second = (tokenizer.ids("") for tokenizer in OURS)

    assert (first[1:], second[2:]) == ((first[1],) * 76, (0,) * 75)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", None),
        ("on " * 75, None),
        ("on " * 75 + "lighthouse, at night", "lighthouse"),
        ("on " * 74 + "lighthouse-keeper's hat", "lighthouse-keeper's"),
        ("on " * 74 + "a, b", "a,"),
        ("on " * 75 + "... and", "..."),
        ("on\u3000" * 75 + "İstanbul!", "İstanbul"),
        ("on " * 75 + "🚀 rocket", "🚀"),
        ("!" * 20 + "on " * 80, "on"),
    ],
)
def test_the_first_word_that_does_not_fit_is_named(text: str, cut: str | None) -> None:
    assert OURS[0].first_cut(text) == cut


def test_of_text_without_spaces_the_first_characters_cut_are_named() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(100))
    cut = OURS[0].first_cut(text)

    assert cut is not None
    assert len(cut) == 20
    assert cut in text


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=120))
def test_a_cut_is_named_exactly_when_transformers_would_cut(text: str) -> None:
    longer = [len(reference(text)["input_ids"]) > 77 for reference in REFERENCES]
    cuts = [tokenizer.first_cut(text) for tokenizer in OURS]

    assert [cut is not None for cut in cuts] == longer
    assert all(cut in text for cut in cuts if cut is not None)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer/tokenizer.json", "{"),
        ("tokenizer/tokenizer.json", "[]"),
        ("tokenizer/tokenizer.json", '{"model": {"vocab": {}}, "added_tokens": []}'),
        ("tokenizer/tokenizer.json", '{"model": {"vocab": [], "merges": []}, "added_tokens": []}'),
        (
            "tokenizer/tokenizer.json",
            '{"model": {"vocab": {"a": 0}, "merges": ["a b"]}, "added_tokens": []}',
        ),
        ("tokenizer/tokenizer.json", None),
        ("tokenizer_2/tokenizer_config.json", None),
        ("tokenizer_2/tokenizer_config.json", '{"pad_token": 7}'),
        ("tokenizer_2/tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}'),
    ],
)
def test_a_broken_file_is_named_with_its_cure(
    tmp_path: Path, file: str, content: str | None
) -> None:
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(POCKET / name, tmp_path / name)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)

    with pytest.raises(InputError, match="copy this folder from the model again") as raised:
        load_tokenizers(tmp_path)
    assert str((tmp_path / file).parent) in str(raised.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer/vocab.json", b'{"a": "b"}'),
        ("tokenizer/vocab.json", b"\xff"),
        ("tokenizer/merges.txt", b"one two three\n"),
        ("tokenizer/merges.txt", b"q zebra</w>\n"),
        ("tokenizer/merges.txt", None),
        ("tokenizer_2/special_tokens_map.json", b"no"),
    ],
)
def test_a_broken_classic_file_is_named(
    tmp_path: Path, classic_model: Path, file: str, content: bytes | None
) -> None:
    model = tmp_path / "model"
    shutil.copytree(classic_model, model)
    if content is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(content)

    with pytest.raises(InputError) as raised:
        load_tokenizers(model)
    assert str(model / file) in str(raised.value)


def test_torch_and_transformers_are_not_needed() -> None:
    code = (
        "import sys; from pathlib import Path; from comicgen.prompts import load_tokenizers;"
        f"load_tokenizers(Path({str(POCKET)!r}))[0].ids('x');"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "[]"
