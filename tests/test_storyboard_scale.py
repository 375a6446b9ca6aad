"""The door is wide: thousands of panels pass it, without torch."""

import subprocess
import sys
from pathlib import Path

from stories import load_story, write_story


def test_five_thousand_panels_load(tmp_path: Path) -> None:
    panels = "".join(
        f"  - id: p{n:04d}\n    prompt: '{{mara}} on wave {n}'\n    aspect: 16:9\n    seed: {n}\n"
        for n in range(5000)
    )
    above = "defaults: {negative: blurry}\ncharacters: {mara: {prompt: a farmer}}\n"

    story = load_story(tmp_path, f"{above}panels:\n{panels}")

    assert len(story.panels) == 5000
    assert [panel.seed for panel in story.panels] == list(range(5000))
    assert story.panels[4321].prompt == "a farmer on wave 4321"


def test_loading_and_the_schema_need_no_torch(tmp_path: Path) -> None:
    path = write_story(tmp_path, "panels: [{id: p, prompt: a}]")
    code = (
        "import sys; from pathlib import Path; from comicgen.storyboard import load, schema;"
        f"load(Path({str(path)!r})); schema();"
        "print(sorted({'torch', 'diffusers', 'transformers', 'PIL'} & set(sys.modules)))"
    )

    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert printed.stdout == "[]\n"
