"""One picture, from embeddings to pixels on the host."""

from typing import Any

from bench_parts import ours, stories
from bench_parts.pictures import difference
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers, draw
from bench_parts.timing import in_turn, judged

FLOOR = 1.30
ROUNDS = 7


def measure(setting: Setting) -> dict[str, Any]:
    """Seconds of both arms, and by how many levels of 255 their pictures differ on average."""
    storyboard = stories.one_panel(setting, candidates=1)
    batch = ours.one_batch(storyboard)
    engine = ours.open_engine(storyboard, setting)
    diffusers = Diffusers(setting)
    texts = diffusers.encode(storyboard.panels[0])
    arms = {
        "ours": lambda: ours.draw(engine, batch),
        "theirs": lambda: draw(diffusers.pipe, batch.candidates, setting.steps, texts),
    }
    in_turn(arms, 2, setting.device)  # warms up, captures, and remembers the embeddings
    timings = in_turn(arms, setting.rounds or ROUNDS, setting.device)
    for name, timing in timings.items():
        say(f"single   {name:6} {timing}")
    ratio = timings["theirs"].median / timings["ours"].median
    say(f"single   theirs / ours {ratio:.3f}, floor {FLOOR}")
    return {
        **{name: timing.to_json() for name, timing in timings.items()},
        "difference": round(difference(timings["ours"].last[0], timings["theirs"].last[0]), 3),
        **judged(ratio, FLOOR),
    }
