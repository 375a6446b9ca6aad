"""Commands that ask for more than the storyboard: the same again, new seeds, more candidates."""

from collections.abc import Sequence
from dataclasses import replace

from comicgen.errors import CommandError
from comicgen.plan.batch import Candidate
from comicgen.plan.candidates import SEEDS, every_candidate, own_seed, stable_hash
from comicgen.plan.past import Kind, Memory, Request, Reseed
from comicgen.plan.selection import Selection, select, selected_panels
from comicgen.storyboard import Panel, Storyboard


def request(
    storyboard: Storyboard,
    memory: Memory,
    selection: Selection,
    kind: Kind,
    count: int | None = None,
) -> Request | None:
    """What to write into the journal for `--redo`, `--reseed` or `--more COUNT`.

    None when the selection means no candidate, or when the very same command is still open in
    the folder: then it goes on where it was interrupted, and asks for nothing twice.

    Raises:
        CommandError: the selection names what is not there, or does not go with `--more`.
    """
    candidates = every_candidate(storyboard, memory)
    panels = selected_panels(selection, storyboard)
    ids = tuple(panel.id for panel in panels) if selection.panels else ()
    asked = Request(kind, ids, selection.candidate, count, failed=selection.failed)
    reseeds: dict[str, Reseed] = {}
    if kind == "more":
        names = _added(asked, panels, memory)
    else:
        chosen = select(selection, storyboard, candidates, memory)
        names = tuple(candidate.name for candidate in chosen)
        reseeds = _reseeds(storyboard, chosen) if kind == "reseed" else {}
    if not names or _is_open(asked, candidates, memory):
        return None
    return replace(asked, names=names, reseeds=reseeds)


def _added(asked: Request, panels: Sequence[Panel], memory: Memory) -> tuple[str, ...]:
    count = asked.count or 0
    if count < 1:
        raise CommandError(f"--more {count}: must add one candidate or more")
    if asked.candidate is not None or asked.failed:
        other = "--failed" if asked.failed else "--candidate"
        raise CommandError(f"--more adds candidates to whole panels; leave out {other}")
    return tuple(
        f"{panel.id}-c{panel.candidates + memory.more.get(panel.id, 0) + extra:02d}"
        for panel in panels
        for extra in range(1, count + 1)
    )


def _reseeds(storyboard: Storyboard, chosen: Sequence[Candidate]) -> dict[str, Reseed]:
    return {
        candidate.name: Reseed(
            _new_seed(storyboard, candidate),
            own_seed(storyboard, candidate.panel, candidate.number),
        )
        for candidate in chosen
    }


def _new_seed(storyboard: Storyboard, candidate: Candidate) -> int:
    """Another seed than the present one, and the same whenever the same is asked."""
    seed = stable_hash(storyboard.seed, candidate.panel.id, candidate.number, candidate.seed)
    return seed if seed != candidate.seed else (seed + 1) % SEEDS


def _is_open(asked: Request, candidates: Sequence[Candidate], memory: Memory) -> bool:
    """Whether the same command was given before and some candidate it meant is still to draw."""
    there = {candidate.name for candidate in candidates}
    return any(
        bool(there & _undrawn(earlier, memory))
        for earlier in memory.requests
        if replace(earlier, names=(), reseeds={}) == asked
    )


def _undrawn(earlier: Request, memory: Memory) -> set[str]:
    if earlier.kind == "more":
        return set(earlier.names) - set(memory.candidates)
    return set(earlier.names) & memory.asked
