"""The commands. Each one parses, calls and prints; what it decides is decided elsewhere."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from comicgen import __version__, pocket
from comicgen.cli import reports
from comicgen.cli.graphs import Wish, graph_options
from comicgen.cli.say import answer, say
from comicgen.cli.situation import Wish as NumericsWish
from comicgen.cli.situation import look
from comicgen.digests import while_digesting
from comicgen.environment import current
from comicgen.errors import ComicgenError, CommandError, Complaint, MachineError, StoryboardError
from comicgen.outputs import manifest_schema
from comicgen.plan import LADDER, Kind, Selection
from comicgen.storyboard import load, schema
from comicgen.weights import describe

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Render storyboards of AI comics overnight, with SDXL, offline.",
)


def _path(text: str) -> Path:
    """A path; an empty one, as of an unset variable, would mean the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def _lanes(lanes: int | None) -> int | None:
    if lanes is None or lanes in LADDER:
        return lanes
    raise CommandError(f"--batch {lanes}: there is no such bucket; choose 1, 2, 4, 8 or 16")


Story = Annotated[
    Path, typer.Argument(metavar="STORY", parser=_path, help="The storyboard, a YAML file.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", parser=_path, help="Another output folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")]
Panels = Annotated[
    list[str] | None,
    typer.Option("--panel", "-p", metavar="ID", help="Only this panel; may be repeated."),
]
Number = Annotated[
    int | None,
    typer.Option("--candidate", metavar="N", help="Only the candidate of this number, from 1."),
]
Failed = Annotated[bool, typer.Option("--failed", help="Only candidates that failed.")]
Lanes = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        callback=_lanes,
        help="At most so many pictures side by side: 1, 2, 4, 8, 16; else 1 on a CPU, 8 on a GPU.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:1 and so on.")
]

Kernels = Annotated[
    NumericsWish,
    typer.Option(
        "--numerics",
        help="plain: torch's kernels; fused: faster ones with other last bits, but for sizes that "
        "were measured to be quicker plain; auto: what the folder has, else what is quicker.",
    ),
]


def run() -> None:
    """Run the command line and end the process with the exit code of the error, if any."""
    try:
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:
        sentence = error.format_message().rstrip(".")
        complaint = Complaint(None, sentence, "see comicgen --help")
        _complain([complaint], CommandError.exit_code)
    except ComicgenError as error:
        _complain(_complaints(error), error.exit_code)


def _complain(complaints: Sequence[Complaint], code: int) -> NoReturn:
    for complaint in complaints:
        say(str(complaint), style="red")
    if "--json" in sys.argv[1:]:
        with suppress(MachineError):  # which may be what is complained of
            errors = [complaint.to_json() for complaint in complaints]
            answer({"event": "error", "exit": code, "errors": errors})
    sys.exit(code)


def _complaints(error: ComicgenError) -> Sequence[Complaint]:
    if isinstance(error, StoryboardError):
        return error.complaints
    return [Complaint(None, sentence) for sentence in str(error).splitlines()]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"comicgen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def render(
    story: Story,
    panel: Panels = None,
    candidate: Number = None,
    more: Annotated[
        int | None,
        typer.Option(
            "--more",
            min=1,
            max=99,
            metavar="N",
            help="Add N candidates beyond the storyboard's count.",
        ),
    ] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Draw the same again.")] = False,
    reseed: Annotated[bool, typer.Option("--reseed", help="Draw again with new seeds.")] = False,
    failed: Failed = False,
    output: Output = None,
    batch: Lanes = None,
    device: Device = "auto",
    numerics: Kernels = "auto",
    graphs: Annotated[
        Wish,
        typer.Option(
            "--graphs",
            help="CUDA graphs: auto uses them on a GPU; off draws the same pictures without.",
        ),
    ] = "auto",
    precapture: Annotated[
        int,
        typer.Option(
            "--precapture",
            min=0,
            metavar="N",
            help="Capture N graphs before drawing: the largest and the commonest.",
        ),
    ] = 0,
    debug_graphs: Annotated[
        bool,
        typer.Option(
            "--debug-graphs", help="Compare every replay with the function it captured; slow."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell of every graph and its replays.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw what is not done: new, changed, missing, damaged and failed candidates."""
    from comicgen.cli.importing import prepare
    from comicgen.cli.rendering import Order, carry_out

    if redo + reseed + (more is not None) > 1:
        raise CommandError("--redo, --reseed and --more exclude each other; choose one")
    kind: Kind | None = "redo" if redo else "reseed" if reseed else "more" if more else None
    with while_digesting(partial(prepare, device, numerics)):
        seen = look(story, output, device)
    options = graph_options(graphs, precapture, debug_graphs, seen.environment)
    chosen = _selection(panel, candidate, failed)
    order = Order(chosen, kind, more, numerics, options, verbose, json)
    insisted = graphs == "on" or precapture > 0 or debug_graphs
    ready = seen.ready(numerics, batch, options.enabled, insisted)
    raise typer.Exit(carry_out(ready, order))


@app.command("plan")
def plan_(
    story: Story,
    panel: Panels = None,
    candidate: Number = None,
    failed: Failed = False,
    output: Output = None,
    batch: Lanes = None,
    device: Device = "auto",
    numerics: Kernels = "auto",
    json: Json = False,
) -> None:
    """Show what `render` would draw, why, how, and what the night needs."""
    seen = look(story, output, device)
    on_gpu = seen.environment.on_gpu
    seen = seen.ready(numerics, batch, on_gpu)
    planned = seen.plan(_selection(panel, candidate, failed))
    reports.warn(seen.storyboard)
    reports.plan(planned, seen.folder, seen.weights(planned) if on_gpu else None, json)


@app.command()
def calibrate(
    story: Story,
    batch: Lanes = None,
    device: Device = "auto",
    numerics: Kernels = "auto",
    json: Json = False,
) -> None:
    """Measure on this GPU what the storyboard's batches cost, once, for `plan` and `render`."""
    from comicgen.cli.calibrating import calibrate
    from comicgen.cli.importing import prepare

    with while_digesting(partial(prepare, device, numerics)):
        storyboard = load(story)
    reports.warn(storyboard)
    calibrate(storyboard, current(device, storyboard.precision), numerics, batch, json)


@app.command()
def status(
    story: Story, output: Output = None, device: Device = "auto", json: Json = False
) -> None:
    """Tell what is done, what failed and what is still to draw."""
    seen = look(story, output, device)
    reports.status(seen.plan(), seen.folder, json)


@app.command()
def check(story: Story, json: Json = False) -> None:
    """Look for every mistake in the storyboard and the files it names, without drawing."""
    reports.check(load(story), json)


@app.command()
def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=_path,
            help="A LoRA, a model folder or a picture; or the name of a shipped one, such as noir.",
        ),
    ],
    json: Json = False,
) -> None:
    """Tell what a file or model folder is."""
    shipped = pocket.everything().get(str(file), file)
    reports.inspect(describe(file if os.path.exists(file) else shipped), json)


@app.command("schema")
def schema_(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="storyboard or manifest.")
    ] = "storyboard",
    json: Json = False,
) -> None:
    """Print the JSON Schema of storyboards, for editors, or of the manifest, for programs."""
    schemas = {"storyboard": schema, "manifest": manifest_schema}
    if what not in schemas:
        raise CommandError(f"there is no schema of {what!r}; choose storyboard or manifest")
    reports.schema(schemas[what](), json)


def _selection(panels: list[str] | None, candidate: int | None, failed: bool) -> Selection:
    return Selection(tuple(panels or ()), candidate, failed)
