"""Storyboards made in memory, for the tests of the plan."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from sketch_run import panel as any_panel

from comicgen.plan import LADDER, Candidate, Memory, Past, Plan, Request, every_candidate
from comicgen.sizes import Size
from comicgen.storyboard import Control, Lora, Model, Panel, Storyboard

WIDE, SQUARE = Size(96, 64), Size(64, 64)
MANY = 1000
"""So many steps that the first use of a graph hardly counts."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def model(name: str = "pocket") -> Model:
    return Model(name, Path("/models") / name, digest(name))


def lora(name: str, weight: float = 0.8) -> Lora:
    return Lora(name, Path("/loras") / name, digest(name), weight)


def control(name: str = "lineart", **changes: Any) -> Control:
    settings = {"weight": 0.7, "start": 0.0, "end": 0.8, **changes}
    return Control(model(name), Path("/maps/p.png"), digest("map"), **settings)


def panel(id: str = "p01", **changes: Any) -> Panel:
    return any_panel(id, **{"prompt": "a farmer on a beach", "size": SQUARE, **changes})


def story(*panels: Panel, **changes: Any) -> Storyboard:
    settings: dict[str, Any] = {"title": None, "model": model(), "seed": 0, "precision": None}
    return Storyboard(path=Path("story.yaml"), panels=panels, **{**settings, **changes})


def only_candidate(storyboard: Storyboard) -> Candidate:
    return every_candidate(storyboard, Memory())[0]


def past(candidate: Candidate, state: Any = "done", **changes: Any) -> Past:
    settings = {"environment": "here", "seconds": 1.0, **changes}
    return Past(state, candidate.fingerprint, candidate.fields, **settings)


def after(memory: Memory, request: Request | None, *drawn: str) -> Memory:
    """A folder to which one more request was made and in which these names were drawn since."""
    memory = memory.with_request(request) if request else memory
    open_ = tuple(each for each in memory.requests if set(each.names) - set(drawn))
    return replace(memory, asked=memory.asked - set(drawn), requests=open_)


def remembered(storyboard: Storyboard, *names: str, **changes: Any) -> Memory:
    """A folder in which these candidates (none named: all) are done."""
    every = every_candidate(storyboard, Memory())
    done = {each.name: past(each) for each in every if not names or each.name in names}
    return Memory(candidates=done, **changes)


def lanes(made: Plan) -> list[list[str | None]]:
    return [[lane.name if lane else None for lane in batch.lanes] for batch in made.batches]


LANES = st.sampled_from(LADDER)


@st.composite
def stories(draw: st.DrawFn) -> Storyboard:
    """Small storyboards in which panels differ in everything that parts batches."""
    ids = draw(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=7, unique=True))
    panels = [
        panel(
            id,
            size=draw(st.sampled_from([SQUARE, WIDE])),
            steps=draw(st.sampled_from([4, 20, MANY])),
            sampler=draw(st.sampled_from(["euler", "ddim"])),
            guidance=draw(st.sampled_from([1.0, 5.0, 7.0])),
            loras=draw(st.sampled_from([(), (lora("m"),), (lora("m", 0.5),)])),
            control=draw(st.sampled_from([None, control(), control(end=1.0), control("depth")])),
            candidates=draw(st.integers(1, 5)),
        )
        for id in ids
    ]
    return story(*panels)


@st.composite
def memories(draw: st.DrawFn, storyboard: Storyboard) -> Memory:
    """What a folder may remember of a storyboard: anything done, failed, gone, asked, reseeded."""
    more = draw(st.dictionaries(st.sampled_from([p.id for p in storyboard.panels]), st.integers(1)))
    more = {id: min(count, 3) for id, count in more.items()}
    every = every_candidate(storyboard, Memory(more=more))
    names = st.sampled_from([each.name for each in every])
    states = draw(st.dictionaries(names, st.sampled_from(["done", "failed", "missing", "damaged"])))
    return Memory(
        candidates={
            each.name: past(each, states[each.name]) for each in every if each.name in states
        },
        more=more,
        asked=draw(st.frozensets(names)),
    )
