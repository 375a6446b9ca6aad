"""Which candidates a command means."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from comicgen.errors import CommandError
from comicgen.plan.batch import Candidate
from comicgen.plan.past import Memory
from comicgen.storyboard import Panel, Storyboard


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates a command means: of these panels (none: all), of this number, only failed.

    Without panels, a number means the candidate of that number wherever there is one.
    """

    panels: tuple[str, ...] = ()
    candidate: int | None = None
    failed: bool = False


EVERYTHING = Selection()


def select(
    selection: Selection, storyboard: Storyboard, candidates: Iterable[Candidate], memory: Memory
) -> list[Candidate]:
    """The candidates that the selection means, in their order.

    Raises:
        CommandError: it names a panel that is not there, or a number that no panel it names has.
    """
    panels = {panel.id for panel in selected_panels(selection, storyboard)}
    if selection.candidate is not None:
        _check_number(selection, [p for p in storyboard.panels if p.id in panels], memory)
    return [
        candidate
        for candidate in candidates
        if candidate.panel.id in panels
        and selection.candidate in (None, candidate.number)
        and (not selection.failed or _failed(candidate, memory))
    ]


def selected_panels(selection: Selection, storyboard: Storyboard) -> tuple[Panel, ...]:
    """The panels that the selection means, in story order.

    Raises:
        CommandError: it names a panel that is not there.
    """
    ids = [panel.id for panel in storyboard.panels]
    unknown = [name for name in dict.fromkeys(selection.panels) if name not in set(ids)]
    if unknown:
        raise CommandError("\n".join(_no_such_panel(name, ids) for name in unknown))
    wanted = set(selection.panels or ids)
    return tuple(panel for panel in storyboard.panels if panel.id in wanted)


def _no_such_panel(name: str, ids: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, ids, n=1, cutoff=0.0)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"--panel {name}: the storyboard has no panel {name!r}{hint}"


def _check_number(selection: Selection, panels: Sequence[Panel], memory: Memory) -> None:
    number = selection.candidate
    assert number is not None
    counts = {panel.id: panel.candidates + memory.more.get(panel.id, 0) for panel in panels}
    lacking = {name: count for name, count in counts.items() if not 1 <= number <= count}
    if not lacking or (not selection.panels and len(lacking) < len(counts)):
        return
    if selection.panels:
        name, count = next(iter(lacking.items()))
        has = f"panel {name!r} has {_candidates(count)}"
    else:
        has = f"no panel has more than {_candidates(max(lacking.values()))}"
    raise CommandError(
        f"--candidate {number} is a number, not a count: {has}, numbered from 1; "
        "--more N adds candidates"
    )


def _candidates(count: int) -> str:
    return f"{count} candidate" + "s" * (count != 1)


def _failed(candidate: Candidate, memory: Memory) -> bool:
    past = memory.candidates.get(candidate.name)
    return past is not None and past.state == "failed"
