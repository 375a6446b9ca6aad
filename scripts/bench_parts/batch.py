"""Several pictures side by side: seconds for one of them, at each number of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from bench_parts import ours, stories
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers, draw
from bench_parts.timing import in_turn, judged
from comicgen.engine import Engine

FLOOR = 1.05
ROUNDS = 3
COUNTS = (1, 2, 4, 8, 16)
OURS, EAGER, THEIRS = ARMS = ("ours", "ours, no graphs", "theirs")

Arm = Callable[[], list[Image.Image]]


def measure(setting: Setting) -> dict[str, Any]:
    """All arms at each number of pictures, and the best of ours against the best of theirs."""
    model = stories.one_panel(setting, candidates=1)
    engines = {
        OURS: ours.open_engine(model, setting),
        EAGER: ours.open_engine(model, setting, False),
    }
    contest = _Contest(setting, engines, Diffusers(setting))
    counts = [contest.at(count) for count in COUNTS]
    best = {
        name: min(each[name]["median"] for each in counts if "median" in each[name])
        for name in ARMS
    }
    ratio = best[THEIRS] / best[OURS]
    say(f"batch    theirs / ours, each at its best, {ratio:.3f}, floor {FLOOR}")
    return {"counts": counts, "best": best, **judged(ratio, FLOOR)}


@dataclass(frozen=True)
class _Contest:
    setting: Setting
    engines: Mapping[str, Engine]
    diffusers: Diffusers

    def at(self, count: int) -> dict[str, Any]:
        """Seconds for one picture of `count`; an arm that cannot draw so many says why."""
        arms, decoding = self._arms(count)
        failed = {name: reason for name, arm in arms.items() if (reason := _warm_up(arm))}
        able = {name: arm for name, arm in arms.items() if name not in failed}
        together = in_turn(able, self.setting.rounds or ROUNDS, self.setting.device)
        timings = {name: timing.each_of(count) for name, timing in together.items()}
        for name, timing in timings.items():
            say(f"batch    {count:2} {name:16} {timing}")
        return {
            "pictures": count,
            "decoding of theirs": decoding,
            **{name: {"failed": reason} for name, reason in failed.items()},
            **{name: timing.to_json() for name, timing in timings.items()},
        }

    def _arms(self, count: int) -> tuple[dict[str, Arm], str]:
        storyboard = stories.one_panel(self.setting, count)
        batch = ours.one_batch(storyboard)
        texts = self.diffusers.encode(storyboard.panels[0])
        decoding = self.diffusers.choose_decoding(batch.candidates, texts)
        steps, pipe = self.setting.steps, self.diffusers.pipe

        def theirs() -> list[Image.Image]:
            return draw(pipe, batch.candidates, steps, texts)

        def own(engine: Engine) -> Arm:
            return lambda: ours.draw(engine, batch)

        mine = {name: own(engine) for name, engine in self.engines.items()}
        return {**mine, THEIRS: theirs}, decoding


def _warm_up(arm: Arm) -> str | None:
    """Why it cannot draw, or None if it can."""
    try:
        arm()
    except (ours.DrawingError, RuntimeError) as error:
        return str(error)
    return None
