"""A night with the embedded model that is killed three times ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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


STARTER = """
import json, os, sys
import comicgen.diffusion.engine
from comicgen.cli import main

for line in sys.stdin:
    out, *arguments = json.loads(line)
    process = os.fork()
    if process == 0:
        os.dup2(os.open(out, os.O_WRONLY), 1)
        sys.argv = ["comicgen", *arguments]
        main()
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
"""Starts each command in a process of its own, and imports what takes seconds only once."""


def command(story: Path, *options: str) -> list[str]:
    return ["render", str(story), "--json", *options]


@dataclass(frozen=True)
class Starter:
    """Starts commands; `pipe` takes what they say."""

    process: subprocess.Popen[str]
    pipe: Path

    def run(self, arguments: list[str], pictures: int | None = None) -> tuple[list[str], int]:
        """The pictures that a command told of, and its exit code; killed after so many."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps([str(self.pipe), *arguments]), file=self.process.stdin, flush=True)
        number = int(self.process.stdout.readline())
        with self.pipe.open(encoding="utf-8") as told:
            names = []
            while line := told.readline():
                event = json.loads(line)
                names += [event["candidate"]] if event["event"] == "drawn" else []
                if len(names) == pictures:
                    os.kill(number, signal.SIGKILL)
        return names, int(self.process.stdout.readline())


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    program = [sys.executable, "-c", STARTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, text=True, **pipes) as process:
        yield Starter(process, pipe)


def done(folder: Path) -> list[str]:
    lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [event["candidate"] for event in events if event["event"] == "done"]


def candidates(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["candidates"]


@pytest.mark.slow
def test_a_night_killed_three_times_ends_with_the_same_bits(
    tmp_path: Path, starter: Starter
) -> None:
    story = tmp_path / "tale.yaml"
    story.write_text(STORY, encoding="utf-8")
    whole, killed = tmp_path / "whole", tmp_path / "outputs" / "tale"
    assert starter.run(command(story, "--output", str(whole)))[1] == 0

    nights = [starter.run(command(story), pictures) for pictures in (1, 2, 1)]
    last = [sys.executable, "-m", "comicgen", *command(story)]
    subprocess.run(last, check=True, stdout=subprocess.PIPE)

    told = [name for names, _ in nights for name in names]
    assert [code for _, code in nights] == [-signal.SIGKILL] * 3
    assert len(set(told)) == len(told)
    assert sorted(done(killed)) == sorted(done(whole))
    assert candidates(killed) == candidates(whole)
    for each in candidates(killed):
        assert (killed / each["file"]).read_bytes() == (whole / each["file"]).read_bytes()
        with Image.open(killed / each["file"]) as picture:
            picture.load()
