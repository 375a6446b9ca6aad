"""What `plan`, `status`, `check`, `inspect` and `schema` print."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from comicgen.cli.say import answer, count, duration, milliseconds, printable, say, show, size
from comicgen.plan import Batch, ControlWindow, Decision, Plan
from comicgen.storyboard import Storyboard


def plan(planned: Plan, folder: Path, weights: int | None, as_json: bool) -> None:
    """Batches, order, choices, the reason of every candidate, and what the night needs.

    `weights` are the bytes of all networks on a GPU, None on a CPU, where nothing is chosen.
    """
    if as_json:
        memory = None if weights is None else {"weights": weights, "bucket": planned.memory}
        answer({"output": str(folder), **planned.to_json(), "memory": memory})
        return
    say(f"output: {folder}")
    if planned.batches:
        show(_groups(planned))
        if weights is not None:
            show(_choices(planned))
    decisions("to draw", planned.drawn)
    decisions("waiting, not asked for", planned.waiting)
    decisions("kept", planned.kept)
    _orphans(planned)
    say(_totals(planned), style="bold")
    if planned.batches:
        _needs(planned, weights)


def _needs(planned: Plan, weights: int | None) -> None:
    """Memory and disk; on a GPU that was not calibrated, how it can be."""
    needs = []
    if weights is not None:
        more = planned.memory
        whole = size(weights + (more or 0))
        needs.append(f"{whole} of GPU memory" + " beside what a step takes" * (more is None))
    at_most = "at most " * planned.disk.at_most
    needs.append(f"{at_most}{size(planned.disk.bytes)} of disk")
    say(f"needs {', '.join(needs)}")
    if weights is not None and not planned.calibrated:
        say("uncalibrated; run `comicgen calibrate STORY` once, to know and to choose", "yellow")


def _choices(planned: Plan) -> Table:
    """How each bucket is drawn, and the times of a step of all its lanes."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("bucket", overflow="fold")
    for title in ("numerics", "graph", "called", "replayed", "plain", "fused"):
        table.add_column(title, justify="right")
    for each in planned.choices:
        times = map(milliseconds, (each.eager, each.replayed, each.plain, each.fused))
        cells = (str(each.key), each.numerics, "yes" if each.graph else "no", *times)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


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
    drawn_in = f"{batch.bucket.size}{guided}"
    return drawn_in, _window(batch.control), loras, batch.sampler, str(batch.steps)


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


def _totals(planned: Plan) -> str:
    seconds = planned.seconds
    cost = "uncalibrated" if seconds is None else f"about {duration(seconds)}"
    parts = [
        count(planned.pictures, "picture") + " to draw",
        count(len(planned.batches), "batch"),
        *([count(planned.captures, "capture")] if planned.terms.captured else []),
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
