"""The command `render`: from an order to pictures, with a progress bar for people."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from comicgen.cli import reports
from comicgen.cli.graphs import telling_graphs
from comicgen.cli.progress import Progress, print_line
from comicgen.cli.say import answer, count, say
from comicgen.cli.situation import Situation
from comicgen.engine import Engine, Event, GraphOptions
from comicgen.environment import Environment
from comicgen.outputs import Outputs, refuse_unusable
from comicgen.plan import EVERYTHING, Kind, Plan, Request, Selection, request
from comicgen.render import Report, Result, Stopping
from comicgen.render import render as draw
from comicgen.storyboard import Model


@dataclass(frozen=True, slots=True)
class Order:
    """What the author wrote behind `render STORY`; `more` counts candidates to add."""

    selection: Selection
    kind: Kind | None
    more: int | None
    batch: int | None
    graphs: GraphOptions
    verbose: bool
    json: bool


def open_engine(model: Model, environment: Environment, options: GraphOptions) -> Engine:
    """Load the model; torch is imported here and not before."""
    from comicgen.diffusion.engine import DiffusionEngine

    return DiffusionEngine.open(model, environment, options)


def carry_out(seen: Situation, order: Order) -> int:
    """Draw what the order asks for and is not done; the exit code.

    The model is loaded before anything is written, so that a wrong one leaves no trace.
    """
    reports.warn(seen.storyboard)
    _, todo = _decide(seen, order)
    refuse_unusable(seen.folder)
    engine = _load(seen, todo, order) if todo.batches else None
    with Outputs.open(seen.folder, seen.storyboard, seen.environment) as outputs:
        asked, todo = _decide(replace(seen, memory=outputs.memory), order)
        if asked:
            outputs.ask(asked)
        result = Result()
        if todo.batches:
            with _telling(todo, order) as tell:
                result = draw(todo, engine or _load(seen, todo, order), outputs, tell)
    _conclude(todo, result, seen.folder, order)
    return result.exit_code


def _decide(seen: Situation, order: Order) -> tuple[Request | None, Plan]:
    """What to write down before drawing, if anything, and what is to be drawn then."""
    asked = None
    if order.kind:
        asked = request(seen.storyboard, seen.memory, order.selection, order.kind, order.more)
    if asked:
        seen = replace(seen, memory=seen.memory.with_request(asked))
    return asked, seen.plan(order.selection, order.batch)


def _load(seen: Situation, todo: Plan, order: Order) -> Engine:
    if not order.json:
        say(f"drawing {count(todo.pictures, 'picture')} into {seen.folder}")
    return open_engine(seen.storyboard.model, seen.environment, order.graphs)


@contextmanager
def _telling(todo: Plan, order: Order) -> Iterator[Report]:
    """Lines for programs or a bar for people, and for who wants it verbose the graphs too."""
    with ExitStack() as stack:
        told = [stack.enter_context(telling_graphs())] if order.verbose else []
        told.append(print_line if order.json else stack.enter_context(Progress(todo)))

        def tell(event: Event | Stopping) -> None:
            for each in told:
                each(event)

        yield tell


def _hint(order: Order) -> str:
    """Why there may be less to do than expected."""
    if order.selection.failed:
        return "; none that was chosen has failed"
    return "; --redo draws the chosen ones again" if order.selection != EVERYTHING else ""


def _conclude(todo: Plan, result: Result, folder: Path, order: Order) -> None:
    left = todo.pictures - result.drawn - result.failed
    if order.json:
        ended = {"drawn": result.drawn, "failed": result.failed, "left": left}
        waiting = [each.candidate.name for each in todo.waiting]
        rest = {"kept": len(todo.kept), "waiting": waiting, "interrupted": result.interrupted}
        answer({"event": "finished", "output": str(folder), **ended, **rest})
        return
    reports.decisions("left alone, not asked for", todo.waiting)
    if not todo.batches:
        say(f"nothing to do: {count(len(todo.kept), 'candidate')} kept in {folder}{_hint(order)}")
        return
    failed = f", {result.failed} failed" if result.failed else ""
    stopped = f"; stopped with {left} left, the same command goes on" if result.interrupted else ""
    say(f"drew {count(result.drawn, 'picture')}{failed} into {folder}{stopped}", style="bold")
