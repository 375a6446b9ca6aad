"""Bad candidates cost nobody else: drawn with the embedded model, through the command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from stories import write_map

from comicgen import pocket
from comicgen.cli import main

STORY = """\
defaults: {size: 64x64, steps: 2, candidates: 1}
panels:
  - {id: before, prompt: a fox}
  - {id: broken-lora, prompt: a fox, loras: [{file: broken.safetensors}]}
  - {id: wild-lora, prompt: a fox, loras: [{file: wild.safetensors}]}
  - {id: torn-map, prompt: a fox, control: {model: lineart, image: torn.png}}
  - {id: good-map, prompt: a fox, control: {model: lineart, image: good.png}}
  - {id: after, prompt: a fox, loras: [{file: noir}]}
"""


def write_loras(folder: Path) -> None:
    """One with a tensor that is not a number, one that drives the latents beyond all numbers."""
    tensors = load_file(pocket.lora("noir"))
    first = next(iter(tensors))
    wild = {name: np.full_like(tensor, 3e4) for name, tensor in tensors.items()}
    save_file(wild, folder / "wild.safetensors")
    save_file(
        {**tensors, first: np.full_like(tensors[first], np.nan)}, folder / "broken.safetensors"
    )


def test_bad_candidates_fail_with_their_reason_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = tmp_path / "tale.yaml"
    story.write_text(STORY, encoding="utf-8")
    write_loras(tmp_path)
    whole = write_map(tmp_path / "good.png", 64, 64).read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[: len(whole) // 2])

    monkeypatch.setattr(
        sys, "argv", ["comicgen", "render", str(story), "--batch", "4", "--device", "cpu"]
    )
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 3
    manifest = json.loads((tmp_path / "outputs/tale/manifest.json").read_text(encoding="utf-8"))
    reasons = {each["panel"]: each["reason"] for each in manifest["candidates"]}
    assert [panel for panel, reason in reasons.items() if reason is None] == [
        "after",
        "before",
        "good-map",
    ]
    assert "broken.safetensors" in reasons["broken-lora"]
    assert "finite" in reasons["wild-lora"]
    assert "torn.png" in reasons["torn-map"]
    journal = (tmp_path / "outputs/tale/journal.jsonl").read_text(encoding="utf-8")
    assert all(json.dumps(reason)[1:-1] in journal for reason in reasons.values() if reason)
