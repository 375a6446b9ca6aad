"""What people see while pictures are drawn: a bar on a terminal, lines in a log."""

import io

import pytest
from plan_stories import panel, story
from rich.console import Console

from comicgen.cli import progress, say
from comicgen.cli.progress import Progress
from comicgen.engine import Failed, GraphLabel, Note
from comicgen.plan import Memory, plan
from comicgen.render import Stopping
from comicgen.sketch import Sketch


def told(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    """What is printed while two candidates are drawn and the third fails."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    monkeypatch.setattr(progress, "people", console)
    monkeypatch.setattr(say, "people", console)
    todo = plan(story(panel(candidates=3)), Memory())
    first, second, third = todo.batches
    with Progress(todo) as tell:
        for batch in (first, second):
            for event in Sketch().draw(batch, ()):
                tell(event)
        tell(GraphLabel(1, "1 x 64x64", 9.0, 0, 2**30, 20, "cudnn"))
        tell(Note("a remark"))
        tell(Stopping())
        tell(Failed(third.candidates[0], "nan"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_a_bar_with_count_and_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = told(monkeypatch, terminal=True)

    assert "━" in shown
    assert "3/3" in shown
    assert "0 s left" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_failures_notes_and_stopping_are_told(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    shown = told(monkeypatch, terminal)

    assert "p01-c03 failed: nan" in shown
    assert "a remark" in shown
    assert "press Ctrl-C again to stop now" in shown


def test_a_log_has_a_line_for_each_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(monkeypatch, terminal=False).splitlines()

    assert [line for line in lines if line[1:3] == "/3"] == [
        "1/3 drew p01-c01, 0 s left",
        "2/3 drew p01-c02, 0 s left",
        "3/3 p01-c03 failed, 0 s left",
    ]
