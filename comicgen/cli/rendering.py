"""The command `render`: from an order to pictures, with a progress bar for people."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from comicgen.cli import reports
from comicgen.cli.progress import Progress, print_line
from comicgen.cli.say import answer, count, say
from comicgen.cli.situation import Situation
from comicgen.engine import Engine
from comicgen.environment import Environment, default_batch
from comicgen.outputs import Outputs
from comicgen.plan import Plan, Request, Selection, plan, request
from comicgen.render import Report, Result
from comicgen.render import render as draw
from comicgen.storyboard import Model

Kind = Literal["redo", "reseed", "more"]


@dataclass(frozen=True, slots=True)
class Order:
    """What the author wrote behind `render STORY`; `more` counts candidates to add."""

    selection: Selection
    kind: Kind | None
    more: int | None
    batch: int | None
    json: bool


def open_engine(model: Model, environment: Environment) -> Engine:
    """Load the model; torch is imported here and not before."""
    from comicgen.diffusion.engine import DiffusionEngine

    return DiffusionEngine.open(model, environment.precision, environment.device)


def carry_out(seen: Situation, order: Order) -> int:
    """Draw what the order asks for and is not done; the exit code."""
    reports.warn(seen.storyboard)
    _request(seen, order)
    _plan(seen, order)  # a wrong order ends here, before anything is written
    with Outputs.open(seen.folder, seen.storyboard, seen.environment) as outputs:
        seen = replace(seen, memory=outputs.memory)
        if asked := _request(seen, order):
            outputs.ask(asked)
            seen = replace(seen, memory=seen.memory.with_request(asked))
        todo = _plan(seen, order)
        result = _render(seen, todo, outputs, order) if todo.batches else Result(0, 0)
    _conclude(todo, result, seen.folder, order)
    return result.exit_code


def _request(seen: Situation, order: Order) -> Request | None:
    if order.kind is None:
        return None
    return request(seen.storyboard, seen.memory, order.selection, order.kind, order.more)


def _plan(seen: Situation, order: Order) -> Plan:
    lanes = order.batch or default_batch(seen.environment)
    label = seen.environment.label
    return plan(seen.storyboard, seen.memory, order.selection, batch=lanes, environment=label)


def _render(seen: Situation, todo: Plan, outputs: Outputs, order: Order) -> Result:
    if not order.json:
        say(f"drawing {count(todo.images, 'picture')} into {seen.folder}")
    engine = open_engine(seen.storyboard.model, seen.environment)
    with _telling(todo, order) as tell:
        return draw(todo, engine, outputs, tell)


def _telling(todo: Plan, order: Order) -> AbstractContextManager[Report]:
    return nullcontext(print_line) if order.json else Progress(todo)


def _conclude(todo: Plan, result: Result, folder: Path, order: Order) -> None:
    left = todo.images - result.drawn - result.failed
    if order.json:
        ended = {"drawn": result.drawn, "failed": result.failed, "left": left}
        waiting = [each.candidate.name for each in todo.waiting]
        rest = {"kept": len(todo.kept), "waiting": waiting, "stopped": result.stopped}
        answer({"event": "finished", "output": str(folder), **ended, **rest})
        return
    reports.decisions("left alone, not asked for", todo.waiting)
    if not todo.batches:
        say(f"nothing to do: {count(len(todo.kept), 'candidate')} kept in {folder}")
        return
    failed = f", {result.failed} failed" if result.failed else ""
    stopped = f"; stopped with {left} left, the same command goes on" if result.stopped else ""
    say(f"drew {count(result.drawn, 'picture')}{failed} into {folder}{stopped}", style="bold")
