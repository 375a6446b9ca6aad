"""What the documents show works, and what the demo promises it has."""

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from comicgen.storyboard import load, schema

ROOT = Path(__file__).parent.parent
STORIES = sorted((ROOT / "storyboards").glob("*.yaml"))


def yaml_of(document: str) -> str:
    """The YAML block of a document that has panels in it."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.S)
    [story] = [block for block in blocks if "panels:" in block]
    return str(story)


@pytest.mark.parametrize(
    "story", sorted((ROOT / "storyboards").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_storyboard_has_no_mistake(story: Path) -> None:
    assert load(story).warnings == ()


def test_the_readme_s_storyboard_has_no_mistake(tmp_path: Path) -> None:
    story = tmp_path / "story.yaml"
    story.write_text(yaml_of("README.md"), encoding="utf-8")

    assert [panel.candidates for panel in load(story).panels] == [4, 2]
    assert load(story).warnings == ()


def test_the_reference_s_storyboard_fits_the_schema() -> None:
    Draft202012Validator(schema()).validate(yaml.safe_load(yaml_of("docs/storyboard.md")))


def test_the_demo_shows_sizes_candidates_a_lora_and_a_controlnet() -> None:
    panels = load(ROOT / "storyboards" / "demo.yaml").panels

    assert len(panels) >= 8
    assert len({panel.size for panel in panels}) >= 4
    assert min(panel.candidates for panel in panels) >= 2
    assert any(panel.loras for panel in panels)
    assert any(panel.control for panel in panels)
