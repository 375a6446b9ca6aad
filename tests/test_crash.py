"""What is drawn stays drawn, whenever and however a run ends."""

import errno
import io
import itertools
import os
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sketch_run import (
    Strike,
    candidates,
    draw,
    draw_and_die,
    draw_until_killed,
    journal,
    manifest,
    panel,
    pictures,
    story,
)

from comicgen.errors import DiskFull
from comicgen.outputs import folder_for
from comicgen.storyboard import Storyboard


def assert_as_if_nothing_happened(broken: Storyboard, whole: Storyboard) -> None:
    """Every candidate is there once, decodes, has one line, and has the uninterrupted bits."""
    lines = Counter(line["candidate"] for line in journal(broken, "done"))
    for content in pictures(broken).values():
        Image.open(io.BytesIO(content)).load()

    assert dict.fromkeys((each.name for each in candidates(broken)), 1) == lines
    assert pictures(whole) == pictures(broken)
    assert manifest(whole)["candidates"] == manifest(broken)["candidates"]
    assert not list(folder_for(broken.path).rglob(".comicgen-*"))


@pytest.mark.parametrize("half", [False, True], ids=["before a call", "in the middle of a write"])
def test_a_run_killed_at_any_write_point_is_resumed_as_if_nothing_happened(
    tmp_path: Path, half: bool
) -> None:
    whole = story(tmp_path / "whole", panel("p01", candidates=2), panel("p02", candidates=1))
    draw(whole)

    for call in itertools.count(1):
        broken = story(tmp_path / str(call), *whole.panels)
        if draw_and_die(broken, call, half=half) == 0:
            break
        draw(broken)
        assert_as_if_nothing_happened(broken, whole)

    assert call > (10 if half else 35)  # as many write points as a run of three candidates has


def test_a_picture_that_another_replaces_survives_a_kill_at_any_write_point(tmp_path: Path) -> None:
    before = story(tmp_path / "whole", panel("p01", candidates=1))
    draw(before)
    [old] = pictures(before).values()
    for call in itertools.count(1):
        draw(story(tmp_path / str(call), *before.panels))
        edited = story(tmp_path / str(call), panel("p01", prompt="a ship", candidates=1))

        code = draw_and_die(edited, call)

        assert old in pictures(edited).values()
        if code == 0:
            break
        draw(edited)
        assert old in pictures(edited).values()
        assert len(pictures(edited)) == 2
    assert call > 10


def test_a_run_killed_again_and_again_at_any_moment_is_resumed_to_the_same_end(
    tmp_path: Path,
) -> None:
    panels = [panel(f"p{number:02d}", candidates=4) for number in range(1, 21)]
    whole, broken = story(tmp_path / "whole", *panels), story(tmp_path / "broken", *panels)
    draw(whole)
    folder = folder_for(broken.path)

    codes = [
        draw_until_killed(broken, 0, (folder / name).exists)
        for name in ("", ".lock", ".writer", "journal.jsonl", "manifest.json")
    ]
    for _ in range(20):
        before = _done(broken)
        codes.append(draw_until_killed(broken, 3, partial(_has_more, broken, before)))
        assert _done(broken) > before
    draw(broken)

    assert codes == [-signal.SIGKILL] * 25
    assert_as_if_nothing_happened(broken, whole)


def _has_more(storyboard: Storyboard, lines: int) -> bool:
    return _done(storyboard) > lines


def _done(storyboard: Storyboard) -> int:
    """How many lines of finished candidates the journal has, torn ones included."""
    path = folder_for(storyboard.path) / "journal.jsonl"
    return path.read_bytes().count(b'{"event": "done"') if path.exists() else 0


def test_a_disk_that_fills_at_any_write_point_stops_the_run_and_keeps_what_is_finished(
    tmp_path: Path,
) -> None:
    whole = story(tmp_path / "whole", panel("p01", candidates=2), panel("p02", candidates=1))
    draw(whole)

    for call in itertools.count(1):
        broken = story(tmp_path / str(call), *whole.panels)
        with Strike(_no_space, call) as strike, suppress(DiskFull):
            draw(broken)
        if not strike.came:
            break
        assert not list(tmp_path.rglob(".comicgen-*"))
        draw(broken)
        assert_as_if_nothing_happened(broken, whole)

    assert call > 35


def _no_space(original: Any, first: Any, *args: Any, **options: Any) -> None:
    """A write writes half of its bytes first."""
    if original.__name__ == "write":
        original(first, args[0][: len(args[0]) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_stays_full_stops_the_run_with_exit_code_4_and_a_later_run_goes_on(
    tmp_path: Path,
) -> None:
    whole, broken = story(tmp_path / "whole"), story(tmp_path / "broken")
    draw(whole)
    kept: list[object] = []

    full = ExitStack()

    def fill_after_two(event: object) -> None:
        kept.append(event)
        if len(kept) == 2:
            full.enter_context(pytest.MonkeyPatch.context()).setattr(os, "write", _full)

    with full, pytest.raises(DiskFull, match="no space is left") as stopped:
        draw(broken, report=fill_after_two)

    assert stopped.value.exit_code == 4
    assert len(kept) == len(journal(broken, "done")) == len(pictures(broken)) == 2
    draw(broken)
    assert_as_if_nothing_happened(broken, whole)


def _full(descriptor: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
