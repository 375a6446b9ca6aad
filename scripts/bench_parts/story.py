"""A whole storyboard, from its YAML to the files on disk."""

from pathlib import Path
from statistics import mean, median
from typing import Any

from PIL import Image

from bench_parts import ours, stories
from bench_parts.pictures import difference
from bench_parts.setting import Setting, say
from bench_parts.their_loop import Loop, try_loras
from bench_parts.theirs import Diffusers
from bench_parts.timing import judged

FLOOR = 1.5
ROUNDS = 1
CANDIDATES = 4
WARM_UP = 18  # panels: every LoRA set in every size


def measure(setting: Setting) -> dict[str, Any]:
    """Both arms draw the same storyboard in turn, each into a fresh folder.

    They begin with the model loaded; ours captures its graphs anew in every round.
    """
    storyboard = stories.story("story", setting, setting.panels, setting.steps, CANDIDATES)
    diffusers = Diffusers(setting)
    cold = _warm_up(setting, diffusers)
    trials = try_loras(diffusers, storyboard)
    fused = frozenset(trial.loras for trial in trials if trial.fuse)
    mine, others = [], []
    for number in range(setting.rounds or ROUNDS):
        mine.append(ours.render_story(storyboard.path, setting, f"ours-{number}"))
        say(f"story    ours     {mine[-1]}")
        others.append(Loop(diffusers, fused, setting.folder / f"theirs-{number}").run(storyboard))
        say(f"story    theirs   {others[-1]}")
    took = median(each.seconds for each in mine)
    ratio = median(each.seconds for each in others) / took
    unsaved = median(each.seconds - each.saving for each in others) / took
    say(f"story    theirs / ours {ratio:.3f}, floor {FLOOR}; {unsaved:.3f} without their saving")
    return {
        "panels": setting.panels,
        "candidates": CANDIDATES,
        "sizes": [str(size) for size in setting.sizes],
        "with ControlNet": sum(panel.control is not None for panel in storyboard.panels),
        "cold": cold,
        "LoRAs of theirs": [trial.to_json() for trial in trials],
        "ours": [each.to_json() for each in mine],
        "theirs": [each.to_json() for each in others],
        "difference": round(_difference(setting.folder / "ours-0", setting.folder / "theirs-0"), 3),
        "theirs / ours": judged(ratio, FLOOR),
        "the same, had theirs saved nothing": round(unsaved, 4),
    }


def _warm_up(setting: Setting, diffusers: Diffusers) -> dict[str, Any]:
    """A story of few steps, drawn by both: what the first use of everything takes."""
    panels = min(WARM_UP, setting.panels)
    short = stories.story("warm-up", setting, panels, min(2, setting.steps), CANDIDATES)
    mine = ours.render_story(short.path, setting, "ours-warm-up")
    theirs = Loop(diffusers, (), setting.folder / "theirs-warm-up").run(short)
    say(f"story    cold     ours   {mine}")
    say(f"story    cold     theirs {theirs}")
    return {"panels": panels, "ours": mine.to_json(), "theirs": theirs.to_json()}


def _difference(one: Path, other: Path) -> float:
    """Over the pictures that two folders hold under the same names."""
    gaps = []
    for file in other.rglob("*.png"):
        with Image.open(file) as picture, Image.open(one / file.relative_to(other)) as same:
            gaps.append(difference(picture, same))
    return mean(gaps)
