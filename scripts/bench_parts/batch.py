"""Several pictures side by side, to files: seconds for one of them, at each number of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench_parts import ours, stories
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers
from bench_parts.timing import in_turn, judged
from comicgen.engine import Engine

FLOOR = 1.7
"""Pictures a second."""

CONTROL_FLOOR = 1.15
ROUNDS = 3
COUNTS = (1, 2, 4, 8, 16)
CONTROLLED = (4, 8)
OURS, PLAIN, THEIRS = ARMS = ("ours", "ours, plain", "theirs")

Arm = Callable[[], Any]


def measure(setting: Setting) -> dict[str, Any]:
    """All arms at each number of pictures, and the best of each."""
    return _measured("batch", setting, COUNTS, controlled=False, floor=FLOOR)


def measure_control(setting: Setting) -> dict[str, Any]:
    """The same beside a ControlNet."""
    return _measured("control", setting, CONTROLLED, controlled=True, floor=CONTROL_FLOOR)


def _measured(
    part: str, setting: Setting, counts: tuple[int, ...], controlled: bool, floor: float
) -> dict[str, Any]:
    model = stories.one_panel(setting, candidates=1)
    engines = {
        OURS: ours.open_engine(model, setting),
        PLAIN: ours.open_engine(model, setting.plain),
    }
    contest = _Contest(part, setting, engines, Diffusers(setting), controlled)
    found = [contest.at(count) for count in setting.pictures or counts]
    seconds = {
        name: [each[name]["median"] for each in found if "median" in each[name]] for name in ARMS
    }
    best = {name: min(each) for name, each in seconds.items() if each}
    rates = {name: round(1 / each, 3) for name, each in best.items()}
    say(f"{part:8} pictures a second: {rates}, floor {floor}")
    return {
        "counts": found,
        "best": best,
        "pictures a second": judged(rates.get(OURS, 0.0), floor),
    }


@dataclass(frozen=True)
class _Contest:
    part: str
    setting: Setting
    engines: Mapping[str, Engine]
    diffusers: Diffusers
    controlled: bool

    def at(self, count: int) -> dict[str, Any]:
        """Seconds for one picture of `count`; an arm that cannot draw so many says why."""
        arms, decoding = self._arms(count)
        failed = {name: reason for name, arm in arms.items() if (reason := _warm_up(arm))}
        able = {name: arm for name, arm in arms.items() if name not in failed}
        together = in_turn(able, self.setting.rounds or ROUNDS, self.setting.device)
        timings = {name: timing.each_of(count) for name, timing in together.items()}
        for name, timing in timings.items():
            say(f"{self.part:8} {count:2} {name:12} {timing}")
        return {
            "pictures": count,
            "decoding of theirs": decoding,
            **{name: {"failed": reason} for name, reason in failed.items()},
            **{name: timing.to_json() for name, timing in timings.items()},
        }

    def _arms(self, count: int) -> tuple[dict[str, Arm], str]:
        """Ours write files; theirs give pictures, which its own way to files would delay."""
        storyboard = stories.one_panel(self.setting, count, self.controlled)
        batch, panel = ours.one_batch(storyboard), storyboard.panels[0]
        pipe, texts = self.diffusers.beside(panel), self.diffusers.given(panel)
        decoding = pipe.choose_decoding(batch.candidates, texts)
        theirs = partial(pipe.draw, batch.candidates, self.setting.steps, texts)
        mine = {
            name: partial(ours.draw_to_files, engine, batch, storyboard, self.setting.folder)
            for name, engine in self.engines.items()
        }
        return {**mine, THEIRS: theirs}, decoding


def _warm_up(arm: Arm) -> str | None:
    """Why it cannot draw, or None if it can."""
    try:
        arm()
    except (ours.DrawingError, RuntimeError) as error:
        return str(error)
    return None
