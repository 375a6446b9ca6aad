"""The sheet of an output folder, and what is said where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parent.parent / "scripts" / "contact_sheet.py"


def write_output(folder: Path, *files: str) -> None:
    """A manifest of panels of one candidate each; the pictures are there but for `lost.png`."""
    entries = [{"panel": file, "status": "done", "file": file} for file in files]
    entries.append({"panel": "later", "status": "planned", "file": "later.png"})
    (folder / "manifest.json").write_text(json.dumps({"candidates": entries}))
    for n, file in enumerate(files):
        if file != "lost.png":
            Image.new("RGB", (80, 80), (200, 10 * n, 0)).save(folder / file)


def run(folder: Path, sheet: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, folder, sheet]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pictures_that_are_done_are_on_the_sheet(tmp_path: Path) -> None:
    write_output(tmp_path, "a.png", "b.png")
    ended = run(tmp_path, tmp_path / "sheet.png")

    assert (ended.returncode, ended.stderr) == (0, "")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (2 * 166 + 6, 172)
        assert [sheet.getpixel((x, 86)) for x in (86, 252)] == [(200, 0, 0), (200, 10, 0)]


@pytest.mark.parametrize(
    ("files", "sheet", "told"),
    [
        ((), "sheet.png", "no finished picture"),
        (("lost.png",), "sheet.png", "lost.png"),
        (("a.png",), "sheet", "unknown file extension"),
        (("a.png",), "nowhere/sheet.png", "nowhere/sheet.png"),
        (None, "sheet.png", "manifest.json"),
    ],
)
def test_what_prevents_a_sheet_is_told_in_one_line(
    files: tuple[str, ...] | None, sheet: str, told: str, tmp_path: Path
) -> None:
    if files is not None:
        write_output(tmp_path, *files)
    ended = run(tmp_path, tmp_path / sheet)

    assert ended.returncode == 1
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1
