"""What is prepared beside other things is done with threads or without, and holds up no end."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from comicgen import beside


def test_work_is_done_in_a_thread_and_its_result_kept() -> None:
    assert beside.begin(threading.current_thread).result(20) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        beside.begin(lambda: 1 / 0).result(20)


def test_without_another_thread_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    assert beside.begin(threading.current_thread).result(0) is threading.current_thread()


def ended(code: str) -> tuple[int, str, str]:
    """How a process ends: its code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_process_ends_without_waiting_for_what_nobody_needs() -> None:
    """It would wait forever."""
    code = "import sys, threading\nfrom comicgen import beside\n"
    code += "beside.begin(threading.Event().wait)\nprint('told')\nbeside.end(2)\n"

    assert ended(code) == (2, "told\n", "")
    assert ended("from comicgen import beside\nbeside.end(2)\nprint('on')") == (0, "on\n", "")


def test_a_storyboard_that_is_wrong_is_refused_while_what_draws_is_imported(
    tmp_path: Path,
) -> None:
    story = tmp_path / "story.yaml"
    story.write_text("model: pocket\npanels: [{id: p01, promt: a fox}]\n", encoding="utf-8")
    code = "import sys\nfrom comicgen import digests\nfrom comicgen.cli import main\n"
    code += f"digests.LARGE = 1\nsys.argv = ['comicgen', 'render', {str(story)!r}]\nmain()\n"
    status, out, err = ended(code)

    assert (status, out) == (2, "")
    assert "promt" in err
    assert "Traceback" not in err
