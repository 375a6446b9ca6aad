"""A process of its own, that begins with nothing: its seconds, told as JSON on stdout.

Each line tells all that is known by then, should the process not live to the next.

    python -m bench_parts.child ours|MODE BEGUN < a pickled Setting

MODE is one of torch.compile's, or `regional`. BEGUN is the time.time() at which it was started.
"""

import json
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image

from bench_parts import ours, stories
from bench_parts.cold import COUNT, FIRST, REGIONAL
from bench_parts.setting import Setting
from bench_parts.timing import Timing, in_turn, timed
from comicgen.diffusion.fused_check import begin
from comicgen.diffusion.precision import place_of

ROUNDS = 5


def main(arguments: Sequence[str]) -> None:
    """Measure one arm, and where that is theirs both in turn afterwards."""
    arm, begun = arguments[0], float(arguments[1])
    setting: Setting = pickle.load(sys.stdin.buffer)
    for told in [_ours(setting, begun)] if arm == "ours" else _compiled(setting, arm, begun):
        print(json.dumps(told), flush=True)


def _ours(setting: Setting, begun: float) -> dict[str, Any]:
    """Seconds to the first pictures, of parts of that, and of the same pictures again.

    Before a model is drawn with, its files are digested.
    """
    imported = time.time()
    storyboard = stories.one_panel(setting, COUNT)
    batch = ours.one_batch(storyboard)
    reading = time.time() - imported
    place = place_of(setting.environment)
    kernels, reason = timed(lambda: begin(*place).result(), setting.device)
    assert not reason, reason
    opening, engine = timed(lambda: ours.open_engine(storyboard, setting), setting.device)
    draw = partial(ours.draw, engine, batch)
    first, _ = timed(draw, setting.device)
    ended = time.time()
    again = in_turn({"again": draw}, 3, setting.device)["again"].median
    return {
        FIRST: round(ended - begun, 3),
        "imports": round(imported - begun, 3),
        "digests": round(reading, 3),
        "kernels": round(kernels, 3),
        "opening": round(opening, 3),
        "first": round(first, 3),
        "again": round(again, 3),
    }


def _compiled(setting: Setting, mode: str, begun: float) -> Iterator[dict[str, Any]]:
    """Seconds to the first pictures, without reading our storyboard; of the same again, which no
    longer records; then for one picture of both arms, in turn, after each round.
    """
    from bench_parts.theirs import Diffusers, quiet  # ours would wait for it

    quiet()
    diffusers = Diffusers(setting)
    pipe = diffusers.pipe
    pipe.unet.to(memory_format=torch.channels_last)
    pipe.vae.to(memory_format=torch.channels_last)
    if mode == REGIONAL:
        pipe.unet.compile_repeated_blocks(fullgraph=True, dynamic=False)
        pipe.vae.decode = torch.compile(pipe.vae.decode, fullgraph=True)
    else:
        pipe.unet = torch.compile(pipe.unet, mode=mode, fullgraph=True)
        decode_mode = "reduce-overhead"  # max-autotune would try its convolutions for minutes
        pipe.vae.decode = torch.compile(pipe.vae.decode, mode=decode_mode, fullgraph=True)
    not_theirs, storyboard = timed(lambda: stories.one_panel(setting, COUNT), setting.device)
    batch = ours.one_batch(storyboard)
    texts = diffusers.encode(storyboard.panels[0])

    def theirs() -> list[Image.Image]:
        return diffusers.draw(batch.candidates, setting.steps, texts)

    theirs()
    told: dict[str, Any] = {FIRST: round(time.time() - begun - not_theirs, 3)}
    yield told
    again = in_turn({"again": theirs}, 2, setting.device)["again"]
    yield told | {"again": round(again.rounds[-1], 3)}
    engine = ours.open_engine(storyboard, setting)
    arms = {"ours": partial(ours.draw, engine, batch), "theirs": theirs}
    in_turn(arms, 1, setting.device)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(setting.rounds or ROUNDS):
        for name, timing in in_turn(arms, 1, setting.device).items():
            seconds[name] += timing.each_of(COUNT).rounds
        yield told | {name: Timing(tuple(each), None).to_json() for name, each in seconds.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
