"""CUDA graphs on the command line: which are wished for, and what is told of them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.table import Table
from rich.text import Text

from comicgen.cli.say import printable, say, show
from comicgen.engine import Event, GraphLabel, GraphOptions
from comicgen.environment import Environment
from comicgen.errors import CommandError
from comicgen.render import Report, Stopping

Wish = Literal["auto", "on", "off"]


def graph_options(
    wish: Wish, precapture: int, debug: bool, environment: Environment
) -> GraphOptions:
    """The options for drawing in this environment; `auto` means graphs on a GPU only.

    Raises:
        CommandError: something is asked of graphs, and there are none.
    """
    enabled = environment.on_gpu and wish != "off"
    asked = ["--graphs on"] * (wish == "on")
    asked += [f"--precapture {precapture}"] * (precapture > 0) + ["--debug-graphs"] * debug
    if asked and not enabled:
        options = " and ".join(asked)
        if wish == "off":
            raise CommandError(f"--graphs off excludes {options}; leave one or the other out")
        raise CommandError(
            f"a CPU has no CUDA graphs for {options}; leave that out, or use --device cuda"
        )
    return GraphOptions(enabled, precapture, debug)


@contextmanager
def telling_graphs() -> Iterator[Report]:
    """Tell people of each graph when it is captured, and at the end of its replays."""
    last: dict[int, GraphLabel] = {}

    def tell(event: Event | Stopping) -> None:
        if isinstance(event, GraphLabel):
            if event.number not in last:
                say(_captured(event))
            last[event.number] = event

    try:
        yield tell
    finally:
        if last:
            show(_replays(last[number] for number in sorted(last)))
        else:
            say("no CUDA graph was captured")


def _captured(label: GraphLabel) -> str:
    before, after = label.before / 2**30, label.after / 2**30
    return (
        f"captured {label.bucket} in {label.seconds:.1f} s, "
        f"memory {before:.1f} -> {after:.1f} GiB, attention by {label.attention}"
    )


def _replays(labels: Iterable[GraphLabel]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("graph", justify="right")
    table.add_column("bucket", overflow="fold")
    table.add_column("replays", justify="right")
    for label in labels:
        table.add_row(str(label.number), Text(printable(label.bucket)), str(label.replays))
    return table
