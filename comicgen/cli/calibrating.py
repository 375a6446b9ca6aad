"""The command `calibrate`: measure once what the batches of a storyboard cost on this GPU."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import get_args

from comicgen.calibration import Calibration
from comicgen.cli.progress import print_line
from comicgen.cli.rendering import engines_of
from comicgen.cli.say import answer, count, milliseconds, say
from comicgen.cli.situation import Wish
from comicgen.engine import GraphOptions, Measured, Measuring, Note
from comicgen.environment import Environment
from comicgen.errors import CommandError, NumericsError
from comicgen.numerics import Numerics
from comicgen.plan import LADDER, GraphKey, Terms, every_graph
from comicgen.storyboard import Storyboard


def calibrate(
    storyboard: Storyboard, environment: Environment, wish: Wish, batch: int | None, as_json: bool
) -> None:
    """Measure every bucket up to `batch` lanes, with all numerics or those wished for.

    What is measured is saved at once, so that an interruption loses nothing.

    Raises:
        CommandError: there is nothing to choose here, or the wish cannot be had.
        MachineError: the model does not fit, or the device is lost.
    """
    kinds = _kinds(environment, wish)
    graphs = every_graph(storyboard, batch or LADDER[-1])
    calibration = Calibration.here(environment, storyboard.model.folder)
    engines = engines_of(storyboard.model, environment, GraphOptions(), calibration)
    if not as_json:
        times = f", each with {' and '.join(kinds)} numerics" if len(kinds) > 1 else ""
        say(f"measuring {count(len(graphs), 'bucket')}{times}")
    missing: list[str] = []
    for kind in kinds:
        try:
            engines.open(kind)  # reads a cold disk and compiles kernels, as only the first does
            engines.close(kind)
            engine = engines.open(kind)
        except NumericsError as error:
            if wish != "auto":
                raise
            say(f"warning: {error}", style="yellow")
            continue
        calibration.save()
        assert isinstance(engine, Measuring)
        for event in engine.measure(graphs):
            if isinstance(event, Measured):
                calibration.take(event)
                calibration.save()
            _tell(event, as_json)
        del engine  # or its model would lie beside the next one's
        engines.close(kind)
        missing += _missing(graphs, Terms(numerics=kind, figures=calibration.figures(environment)))
    _conclude(calibration, missing, as_json)


def _kinds(environment: Environment, wish: Wish) -> tuple[Numerics, ...]:
    if not environment.on_gpu:
        raise CommandError(
            "a CPU has nothing to calibrate, it has one way to draw; use --device cuda"
        )
    if wish == "fused" and environment.why_not_fused:
        raise CommandError(
            f"{environment.hardware} cannot draw with fused numerics: {environment.why_not_fused}; "
            "leave --numerics out"
        )
    if wish != "auto":
        return (wish,)
    return ("plain",) if environment.why_not_fused else get_args(Numerics)


def _tell(event: Measured | Note, as_json: bool) -> None:
    if isinstance(event, Note):
        _warn(event, as_json)
        return
    if as_json:
        answer({"event": "measured", **asdict(event), "bucket": str(event.bucket)})
        return
    ways = {
        "called": milliseconds(event.eager),
        "replayed": milliseconds(event.replayed),
        "to capture": milliseconds(event.first_use),
        "to decode a picture": milliseconds(event.decode),
    }
    told = ", ".join(f"{time} {way}" for way, time in ways.items() if time != "-")
    say(f"{event.bucket}, {event.numerics}: {told}")


def _warn(note: Note, as_json: bool) -> None:
    if as_json:
        print_line(note)
    else:
        say(f"warning: {note.text}", style="yellow")


def _missing(graphs: Iterable[GraphKey], terms: Terms) -> list[str]:
    """The buckets of which a plan with these terms would not know all that it needs."""
    kind, decode = terms.numerics, terms.figures.decode
    return [
        f"{bucket} ({kind})"
        for bucket in dict.fromkeys(key.bucket for key in graphs)
        if not terms.figure(bucket) or (kind, bucket.size) not in decode
    ]


def _conclude(calibration: Calibration, missing: list[str], as_json: bool) -> None:
    if as_json:
        file = str(calibration.file) if calibration.saved else None
        answer({"event": "calibrated", "file": file, "missing": missing})
        return
    if missing:
        listed = ", ".join(missing)
        say(f"could not be measured: {listed}; what needs them stays uncalibrated", style="yellow")
    if calibration.saved:
        say(f"remembered in {calibration.file}", style="bold")
    else:
        say(
            "not remembered, the cache folder cannot be written; COMICGEN_CACHE names another",
            style="yellow",
        )
