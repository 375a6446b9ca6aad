"""What `plan`, `status`, `check`, `inspect` and `schema` print."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from comicgen.cli.say import answer, count, duration, printable, say, show
from comicgen.plan import Batch, ControlWindow, Decision, Plan
from comicgen.storyboard import Storyboard


def plan(planned: Plan, folder: Path, graphs: bool, as_json: bool) -> None:
    """Batches, order and the reason of every candidate; captures only where `graphs` are."""
    if as_json:
        captures = planned.captures if graphs else 0
        answer({"output": str(folder), **planned.to_json(), "captures": captures})
        return
    say(f"output: {folder}")
    if planned.batches:
        show(_groups(planned))
    decisions("to draw", planned.drawn)
    decisions("waiting, not asked for", planned.waiting)
    decisions("kept", planned.kept)
    _orphans(planned)
    say(_totals(planned, graphs), style="bold")


def _groups(planned: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("size", "control", "loras", "sampler", "steps"):
        table.add_column(title, overflow="fold")
    for title in ("pictures", "batches", "padded"):
        table.add_column(title, justify="right")
    groups: dict[tuple[str, ...], list[Batch]] = {}
    for batch in planned.batches:
        groups.setdefault(_group(batch), []).append(batch)
    for row, batches in groups.items():
        pictures = sum(len(batch.candidates) for batch in batches)
        padded = sum(batch.padded for batch in batches)
        cells = (*row, str(pictures), str(len(batches)), str(padded))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _group(batch: Batch) -> tuple[str, ...]:
    guided = "" if batch.bucket.guided else " unguided"
    loras = ", ".join(f"{lora.written} {lora.weight:g}" for lora in batch.loras) or "-"
    size = f"{batch.bucket.size}{guided}"
    return size, _window(batch.control), loras, batch.sampler, str(batch.steps)


def _window(control: ControlWindow | None) -> str:
    if control is None:
        return "-"
    whole = (control.start, control.end) == (0, 1)
    return control.model.written + ("" if whole else f" {control.start:g}-{control.end:g}")


def decisions(title: str, listed: Iterable[Decision]) -> None:
    """One line for each panel and reason: `  p03  c01 c02  changed (steps 20 -> 30)`."""
    lines = []
    for (panel, reason), group in groupby(listed, lambda each: (_panel(each), str(each.reason))):
        numbers = " ".join(f"c{each.candidate.number:02d}" for each in group)
        lines.append(f"  {panel}  {numbers}  {reason}")
    if lines:
        say("\n".join([f"{title}:", *lines]))


def _panel(decision: Decision) -> str:
    return decision.candidate.panel.id


def _orphans(planned: Plan) -> None:
    if planned.orphans:
        names = " ".join(planned.orphans)
        say(f"no longer in the storyboard, their pictures stay: {names}", style="yellow")


def _totals(planned: Plan, graphs: bool) -> str:
    seconds = planned.seconds
    cost = "uncalibrated" if seconds is None else f"about {duration(seconds)}"
    parts = [
        count(planned.pictures, "picture") + " to draw",
        count(len(planned.batches), "batch"),
        *([count(planned.captures, "capture")] if graphs else []),
        count(planned.padded, "padded lane"),
        f"{len(planned.kept)} kept",
        f"{len(planned.waiting)} waiting",
    ]
    return ", ".join(parts) + (f"; {cost}" if planned.batches else "")


def status(planned: Plan, folder: Path, as_json: bool) -> None:
    """How much is done, and what is not."""
    kinds = Counter(each.reason.kind for each in (*planned.kept, *planned.drawn))
    if as_json:
        left = [each.to_json("draw") for each in planned.drawn]
        orphans = list(planned.orphans)
        answer({"output": str(folder), "counts": dict(kinds), "left": left, "orphans": orphans})
        return
    total = len(planned.kept) + len(planned.drawn)
    say(f"output: {folder}")
    say(f"{len(planned.kept)} of {count(total, 'candidate')} done", style="bold")
    decisions("to draw", planned.drawn)
    _orphans(planned)


def check(storyboard: Storyboard, as_json: bool) -> None:
    """That the storyboard can be drawn, with its warnings."""
    panels = len(storyboard.panels)
    pictures = sum(panel.candidates for panel in storyboard.panels)
    if as_json:
        warnings = list(storyboard.warnings)
        answer({"ok": True, "panels": panels, "pictures": pictures, "warnings": warnings})
        return
    warn(storyboard)
    say(f"{storyboard.path}: {count(panels, 'panel')}, {count(pictures, 'picture')}, no mistakes")


def warn(storyboard: Storyboard) -> None:
    """Print the storyboard's warnings."""
    for warning in storyboard.warnings:
        say(f"warning: {warning}", style="yellow")


def inspect(found: Mapping[str, Any], as_json: bool) -> None:
    """What a file is, one line a fact."""
    if as_json:
        answer(found)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in found.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(Text(key, style="dim"), Text(printable(shown)))
    show(table)


def schema(value: Mapping[str, Any], as_json: bool) -> None:
    """A JSON Schema, indented for people and files, on one line with `--json`."""
    answer(value, indent=None if as_json else 2)
