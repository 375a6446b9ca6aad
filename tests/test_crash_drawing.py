"""A night with the embedded model that is killed three times ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

STORY = """\
defaults: {size: 192x128, steps: 6, candidates: 2, guidance: 5}
panels:
  - {id: p01, prompt: a fox in a forest at night, loras: [{file: noir}]}
  - {id: p02, prompt: a king in a bedroom, sampler: euler a}
  - {id: p03, prompt: a witch in a cave, sampler: dpm++ 2m karras}
"""


def command(story: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "comicgen", "render", str(story), "--json", *options]


def draw_until_killed(story: Path, pictures: int) -> list[str]:
    """SIGKILL while the picture after these is being drawn; the names of those that were done."""
    with subprocess.Popen(command(story), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        drawn = [json.loads(process.stdout.readline())["candidate"] for _ in range(pictures)]
        process.kill()
        rest = [json.loads(line)["candidate"] for line in process.stdout]
    assert process.returncode == -9
    return drawn + rest


def done(folder: Path) -> list[str]:
    lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [event["candidate"] for event in events if event["event"] == "done"]


def candidates(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["candidates"]


@pytest.mark.slow
def test_a_night_killed_three_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    story = tmp_path / "tale.yaml"
    story.write_text(STORY, encoding="utf-8")
    whole, killed = tmp_path / "whole", tmp_path / "outputs" / "tale"
    subprocess.run(command(story, "--output", str(whole)), check=True, stdout=subprocess.PIPE)

    told = [name for pictures in (1, 2, 1) for name in draw_until_killed(story, pictures)]
    subprocess.run(command(story), check=True, stdout=subprocess.PIPE)

    assert len(set(told)) == len(told)
    assert sorted(done(killed)) == sorted(done(whole))
    assert candidates(killed) == candidates(whole)
    for each in candidates(killed):
        assert (killed / each["file"]).read_bytes() == (whole / each["file"]).read_bytes()
        with Image.open(killed / each["file"]) as picture:
            picture.load()
