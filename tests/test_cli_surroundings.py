"""Commands among pipes, signals, locales and disks that do not do as one would like."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_cli import Comicgen, comicgen, output, story

from comicgen.cli import main

__all__ = ["comicgen", "story"]  # fixtures

SKETCHING = """
import sys
from comicgen.cli import main, rendering
from comicgen.sketch import Sketch
rendering.open_engine = lambda model, environment, options: Sketch()
main()
"""
INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == LAST_IMPORT:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a caller may ignore it
sys.meta_path.insert(0, Finder())
from comicgen.cli import main
main()
"""


def run(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, text=True, check=False, **pipes)


def last_line(story: Path) -> dict[str, Any]:
    lines = (output(story) / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    last: dict[str, Any] = json.loads(lines[-1])
    return last


@pytest.mark.parametrize("module", ["pydantic", "PIL", "torch", "diffusers"])
def test_ctrl_c_before_drawing_ends_quietly_and_nothing_is_written(
    story: Path, module: str
) -> None:
    ended = run(f"LAST_IMPORT = {module!r}\n{INTERRUPTED}", "render", str(story))

    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert not output(story).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("render",), "Missing argument 'STORY'"),
        (("check", ""), "the path is empty"),
        (("render", "STORY", "--output", ""), "the path is empty"),
        (("render", "STORY", "--outptu", "x"), "No such option: --outptu"),
        (("render", "STORY", "--more", "100"), "--more"),
    ],
)
def test_a_wrong_command_is_a_sentence_and_a_line_of_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    story: Path,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    words = [str(story) if word == "STORY" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["comicgen", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()

    assert said in err
    assert json.loads(out)["exit"] == ended.value.code == 2
    assert err.count("\n") == 1
    assert not output(story).exists()


def test_a_reader_that_goes_away_interrupts_and_the_same_command_goes_on(
    comicgen: Comicgen, story: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(SKETCHING, "render", str(story), "--json", stdout=writer)
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (130, "")
    assert last_line(story)["stopped"] == "interrupted"
    assert len(comicgen("render", "--json").drawn) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
class TestFull:
    def test_answers_that_cannot_be_written_stop_the_run(self, story: Path) -> None:
        with open("/dev/full", "w") as full:
            ended = run(SKETCHING, "render", str(story), "--json", stdout=full)

        assert ended.returncode == 4
        assert ended.stderr == "standard output cannot be written: No space left on device\n"
        assert "standard output" in last_line(story)["stopped"]

    @pytest.mark.parametrize("arguments", [("render",), ("plan",), ("check",)])
    def test_that_nobody_can_be_told_is_no_reason_to_stop(
        self, story: Path, arguments: tuple[str, ...]
    ) -> None:
        with open("/dev/full", "w") as full:
            ended = run(SKETCHING, *arguments, str(story), stderr=full)

        assert ended.returncode == 0


def test_answers_suit_every_locale(story: Path) -> None:
    chinese = story.rename(story.with_name("灯塔.yaml"))

    ended = run(SKETCHING, "plan", str(chinese), "--json", env={"PYTHONIOENCODING": "ascii"})

    assert ended.stderr == ""
    assert json.loads(ended.stdout)["output"].endswith("灯塔")


def test_a_name_that_is_no_utf_8_is_as_good_as_another(comicgen: Comicgen, story: Path) -> None:
    odd = story.rename(story.with_name(os.fsdecode(b"l\xff.yaml")))

    assert len(comicgen("render", "--json", file=odd).drawn) == 6
    assert comicgen("render", "--json", file=odd).drawn == []


def test_a_reader_that_stalls_cannot_keep_the_run_from_ending(story: Path) -> None:
    """The first and the second signal wait for the reader; the third waits for nothing."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    command = [sys.executable, "-c", SKETCHING, "render", str(story), "--json"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL) as running:
        while not _is_drawing(story):
            assert running.poll() is None
        for _ in range(3):
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(1)
    os.close(reader)
    os.close(writer)

    assert running.returncode == 130


def _is_drawing(story: Path) -> bool:
    journal = output(story) / "journal.jsonl"
    return journal.exists() and b'"done"' in journal.read_bytes()


def test_a_folder_that_is_moved_away_while_it_is_drawn_into_ends_the_run(story: Path) -> None:
    """And not as if all were well; nothing new grows in its place."""
    moving = f"""
import os
from comicgen.sketch import Sketch

class Moving(Sketch):
    def draw(self, batch, upcoming):
        if len(upcoming) == 2:
            os.rename({str(output(story))!r}, {str(output(story)) + "-moved"!r})
        yield from super().draw(batch, upcoming)

from comicgen.cli import main, rendering
rendering.open_engine = lambda model, environment, options: Moving()
main()
"""
    ended = run(moving, "render", str(story))

    assert ended.returncode == 4, ended.stderr
    assert "cannot be used" in ended.stderr
    assert not output(story).exists()
