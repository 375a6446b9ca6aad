"""Time what must be quick before a night begins: reading, planning and resuming a long story.

    python scripts/bench_plan.py [--panels 5000] [--candidates 4]

Prints seconds as JSON. Nothing is drawn by a model; the resumed folder is one that the sketch
engine filled.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comicgen.engine import Drawn
from comicgen.environment import current
from comicgen.outputs import Outputs, folder_for, read_memory
from comicgen.plan import Memory, Plan, plan
from comicgen.sketch import Sketch
from comicgen.storyboard import Storyboard, load

ASPECTS = ("1:1", "16:9", "3:2", "2:3", "9:16")


def write_story(file: Path, panels: int, candidates: int) -> None:
    """A story in which sizes, LoRAs and characters alternate."""
    lines = [
        f"defaults: {{candidates: {candidates}, negative: blurry, style: comic book style}}",
        "characters: {rusty: {prompt: a fox in a blue shirt}}",
        "panels:",
    ]
    for number in range(panels):
        aspect = ASPECTS[number % len(ASPECTS)]
        loras = ", loras: [{file: noir, weight: 0.8}]" if number % 3 == 0 else ""
        lines.append(
            f'  - {{id: p{number:05d}, aspect: "{aspect}"{loras}, '
            f'prompt: "{{rusty}} on a street, scene {number}", caption: Scene {number}}}'
        )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def timed(results: dict[str, Any], name: str, work: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    value = work()
    results[name] = round(time.perf_counter() - begun, 2)
    return value


def fill(storyboard: Storyboard, planned: Plan) -> None:
    """Journal every candidate as drawn, with one small picture for all of them."""
    environment = current("cpu", None)
    engine = Sketch()
    with Outputs.open(folder_for(storyboard.path), storyboard, environment) as outputs:
        picture = next(iter(engine.draw(planned.batches[0], ())))
        assert isinstance(picture, Drawn)
        for batch in planned.batches:
            for candidate in batch.candidates:
                drawn = Drawn(candidate, picture.image.resize((8, 8)), 1.0)
                outputs.save(drawn, batch, outputs.encoding(drawn).whole())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--panels", type=int, default=5000)
    parser.add_argument("--candidates", type=int, default=4)
    asked = parser.parse_args()
    results: dict[str, Any] = {**vars(asked), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as folder:
        story = Path(folder) / "story.yaml"
        write_story(story, asked.panels, asked.candidates)
        load(story)  # digests the model once
        storyboard = timed(results, "load", lambda: load(story))
        planned = timed(results, "plan, all new", lambda: plan(storyboard, Memory()))
        timed(results, "plan, all new, batches of 8", lambda: plan(storyboard, Memory(), batch=8))
        fill(storyboard, planned)
        memory = timed(results, "resume scan", lambda: read_memory(folder_for(story), storyboard))
        timed(results, "plan, all done", lambda: plan(storyboard, memory))
        journal = folder_for(story) / "journal.jsonl"
        results["journal, MB"] = round(journal.stat().st_size / 1e6, 1)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
