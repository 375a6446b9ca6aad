"""One picture, from embeddings to its PNG file."""

from functools import partial
from typing import Any

from bench_parts import ours, stories
from bench_parts.pictures import difference
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers
from bench_parts.timing import in_turn, judged

FLOOR = 0.75
"""Seconds, at most."""

ROUNDS = 7


def measure(setting: Setting) -> dict[str, Any]:
    """Seconds of both arms, and by how many levels of 255 their pictures differ on average.

    Theirs saves with Pillow, as a user would.
    """
    storyboard = stories.one_panel(setting, candidates=1)
    batch = ours.one_batch(storyboard)
    engine = ours.open_engine(storyboard, setting)
    diffusers = Diffusers(setting)
    texts = diffusers.encode(storyboard.panels[0])

    def theirs() -> Any:
        [picture] = diffusers.draw(batch.candidates, setting.steps, texts)
        picture.save(setting.folder / "theirs.png")
        return picture

    arms = {
        "ours": partial(ours.draw_to_files, engine, batch, storyboard, setting.folder),
        "theirs": theirs,
    }
    in_turn(arms, 2, setting.device)  # warms up, captures, and remembers the embeddings
    timings = in_turn(arms, setting.rounds or ROUNDS, setting.device)
    for name, timing in timings.items():
        say(f"single   {name:6} {timing}")
    seconds = timings["ours"].median
    say(f"single   theirs / ours {timings['theirs'].median / seconds:.3f}; at most {FLOOR} s")
    gap = difference(ours.draw(engine, batch)[0], timings["theirs"].last)
    return {
        **{name: timing.to_json() for name, timing in timings.items()},
        "difference": round(gap, 3),
        "seconds": judged(seconds, FLOOR, most=True),
    }
