"""On a GPU the demo draws through graphs by itself, and a resumed night ends with the same bits."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from comicgen.cli import main
from comicgen.plan import Memory, plan
from comicgen.storyboard import load

pytestmark = pytest.mark.gpu

STORY = Path(__file__).parent.parent / "storyboards" / "demo.yaml"


@pytest.fixture(autouse=True)
def _uncalibrated(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What other tests measured here would leave out graphs that do not pay."""
    monkeypatch.setenv("COMICGEN_CACHE", str(tmp_path_factory.mktemp("cache")))


def render(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> dict[str, str]:
    """Draw what is not done; the digest of every picture there is then."""
    argv = ["comicgen", "render", str(STORY), "--output", str(folder), "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", [*argv, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    pictures = folder.glob("p*/*.png")
    return {picture.name: sha256(picture.read_bytes()).hexdigest() for picture in pictures}


def test_the_demo_draws_through_graphs_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All graphs that its plan counts; only the first three calls of each are eager."""
    render(monkeypatch, tmp_path)
    [run] = json.loads((tmp_path / "manifest.json").read_text("utf-8"))["runs"]
    planned = plan(load(STORY), Memory(), batch=8)

    assert len(run["graphs"]) == planned.captures > 1
    assert all(graph["replays"] > 0 for graph in run["graphs"])
    assert not any("without a graph" in note for note in run["notes"])


@pytest.mark.parametrize("numerics", ["plain", "fused"])
def test_pictures_drawn_again_in_other_buckets_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, numerics: str
) -> None:
    """What is lost is packed anew: other lanes, other company, other buckets."""
    whole = render(monkeypatch, tmp_path, "--numerics", numerics)
    for picture in sorted(tmp_path.glob("p*/*.png"))[::3]:
        picture.unlink()

    assert render(monkeypatch, tmp_path) == whole


def test_pictures_drawn_one_by_one_have_the_bits_of_those_drawn_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    together = render(monkeypatch, tmp_path / "together", "--batch", "16")

    assert render(monkeypatch, tmp_path / "alone", "--batch", "1") == together
