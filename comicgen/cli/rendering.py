"""The command `render`: from an order to pictures, with a progress bar for people."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from comicgen.calibration import Calibration
from comicgen.cli import reports
from comicgen.cli.engines import Engines
from comicgen.cli.graphs import telling_graphs
from comicgen.cli.importing import import_engine, settle_kernels
from comicgen.cli.progress import Progress, print_line
from comicgen.cli.say import answer, count, say
from comicgen.cli.situation import Situation, Wish
from comicgen.engine import Engine, Event, GraphOptions, Measured, Note
from comicgen.environment import Environment
from comicgen.errors import NumericsError
from comicgen.numerics import Numerics
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
    numerics: Wish
    graphs: GraphOptions
    verbose: bool
    json: bool


def open_engine(model: Model, environment: Environment, options: GraphOptions) -> Engine:
    """Load the model; torch is imported here, or while large files are digested."""
    import_engine()
    settle_kernels(environment)
    from comicgen.diffusion.engine import DiffusionEngine

    return DiffusionEngine.open(model, environment, options)


def carry_out(seen: Situation, order: Order) -> int:
    """Draw what the order asks for and is not done; the exit code.

    The model is loaded before anything is written, so that a wrong one leaves no trace. Where
    fused numerics turn out to fail, a new folder whose author did not ask for them is plain.
    """
    reports.warn(seen.storyboard)
    try:
        return _carry_out(seen, order)
    except NumericsError as error:
        if order.numerics != "auto" or seen.memory.numerics:
            raise
        why = f"drawing with plain numerics, as {error}"
    say(f"warning: {why}", style="yellow")
    if order.json:
        print_line(Note(why))
    return _carry_out(seen.in_plain(why), order)


def _carry_out(seen: Situation, order: Order) -> int:
    _, todo = _decide(seen, order)
    refuse_unusable(seen.folder)
    if not (todo.batches or seen.memory.numerics):
        _conclude(todo, Result(), seen.folder, order)  # and begin no folder
        return 0
    with _remembering(seen) as calibration:
        engines = _load(seen, todo, order, calibration) if todo.batches else None
        with Outputs.open(seen.folder, seen.storyboard, seen.environment) as outputs:
            asked, todo = _decide(replace(seen, memory=outputs.memory), order)
            if asked:
                outputs.ask(asked)
            result = Result()
            if todo.batches:
                engines = engines or _load(seen, todo, order, calibration)
                outputs.settle(todo.unsettled)
                with _telling(todo, order, calibration) as tell:
                    result = draw(todo, engines, outputs, tell)
    _conclude(todo, result, seen.folder, order)
    return result.exit_code


def _decide(seen: Situation, order: Order) -> tuple[Request | None, Plan]:
    """What to write down before drawing, if anything, and what is to be drawn then."""
    asked = None
    if order.kind:
        asked = request(seen.storyboard, seen.memory, order.selection, order.kind, order.more)
    if asked:
        seen = replace(seen, memory=seen.memory.with_request(asked))
    return asked, seen.plan(order.selection)


def _load(seen: Situation, todo: Plan, order: Order, calibration: Calibration | None) -> Engines:
    """The engines, of which the first is open.

    Before a folder begins, its own numerics are opened even if nothing is drawn with them yet, for
    it will have them to the end.
    """
    if not order.json:
        say(f"drawing {count(todo.pictures, 'picture')} into {seen.folder}")
    options = replace(order.graphs, without=todo.without)
    engines = engines_of(seen.storyboard.model, seen.environment, options, calibration)
    own, first = seen.environment.kind, todo.batches[0].numerics
    if own != first and not seen.memory.numerics:
        engines.open(own)
        engines.close(own)
    engines.open(first)
    return engines


def engines_of(
    model: Model,
    environment: Environment,
    options: GraphOptions,
    calibration: Calibration | None,
) -> Engines:
    """The engines of a model in an environment; how long opening them takes is remembered."""

    def open_one(numerics: Numerics) -> Engine:
        own = environment.drawing(numerics)
        if calibration is None:
            return open_engine(model, own, options)
        import_engine()  # takes as long with any numerics
        begun = perf_counter()
        engine = open_engine(model, own, options)
        calibration.opened(own.numerics, perf_counter() - begun)
        return engine

    return Engines(open_one)


@contextmanager
def _remembering(seen: Situation) -> Iterator[Calibration | None]:
    """What is remembered of this machine, saved in the end; a CPU has nothing to choose."""
    calibration = seen.calibration if seen.environment.on_gpu else None
    try:
        yield calibration
    finally:
        if calibration:
            calibration.save()


@contextmanager
def _telling(todo: Plan, order: Order, calibration: Calibration | None) -> Iterator[Report]:
    """Lines for programs or a bar for people, and for who wants it verbose the graphs too."""
    with ExitStack() as stack:
        told = [stack.enter_context(telling_graphs())] if order.verbose else []
        told.append(print_line if order.json else stack.enter_context(Progress(todo)))

        def tell(event: Event | Stopping) -> None:
            if calibration and isinstance(event, Measured):
                calibration.take(event)
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
