"""The JSON Schema helps an editor: it takes what loads and marks what does not."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from stories import complaints, load_story

from comicgen.storyboard import SAMPLERS, schema

GOOD = """
title: 2024
model: pocket
seed: 7
precision: fp16
defaults: {aspect: 3:4, steps: 20, guidance: 1e+1, sampler: DPM++ 2M Karras, negative: no}
characters:
  mara: {prompt: a farmer}
panels:
  - {id: 第001格, prompt: "{mara} runs", aspect: 16:9, caption: on, control: null, candidates: 3}
  - {id: 010, prompt: a, size: 256x256, negative: null, guidance: 1e-4, steps: , seed: 0}
"""
BAD = {
    "unknown key": "panels: [{id: a, prompt: b, promt: c}]",
    "no panel": "panels: []",
    "no prompt": "panels: [{id: a}]",
    "sampler": "panels: [{id: a, prompt: b, sampler: heun}]",
    "id": "panels: [{id: a b, prompt: b}]",
    "long id": f"panels: [{{id: {'a' * 65}, prompt: b}}]",
    "aspect": "panels: [{id: a, prompt: b, aspect: wide}]",
    "size": "panels: [{id: a, prompt: b, size: big}]",
    "both": "panels: [{id: a, prompt: b, size: 256x256, aspect: '1:1'}]",
    "steps": "panels: [{id: a, prompt: b, steps: many}]",
    "seed": "panels: [{id: a, prompt: b, seed: 4294967296}]",
    "guidance": "panels: [{id: a, prompt: b, guidance: -1}]",
    "control": "panels: [{id: a, prompt: b, control: {model: lineart}}]",
    "lora": "panels: [{id: a, prompt: b, loras: [noir]}]",
    "precision": "{precision: fp8, panels: [{id: a, prompt: b}]}",
    "character": "{characters: {mara: {}}, panels: [{id: a, prompt: b}]}",
    "text": "panels: [{id: a, prompt: [b]}]",
}


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def test_what_loads_is_taken(tmp_path: Path, validator: Any) -> None:
    load_story(tmp_path, GOOD)

    as_yaml_1_1 = yaml.safe_load(GOOD.replace("negative: no", "negative: 'no'"))

    assert list(validator.iter_errors(as_yaml_1_1)) == []


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_does_not_load_is_marked(tmp_path: Path, validator: Any, text: str) -> None:
    assert complaints(tmp_path, text)
    assert not validator.is_valid(yaml.safe_load(text))


def test_an_editor_can_complete_and_explain_every_key() -> None:
    whole = schema()
    objects = [whole, *whole["$defs"].values()]

    assert whole["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert all(one["additionalProperties"] is False for one in objects)
    assert all(key["description"] for one in objects for key in one["properties"].values())
    sampler = whole["$defs"]["WrittenPanel"]["properties"]["sampler"]
    assert set(SAMPLERS) <= set(sampler["anyOf"][0]["enum"])
