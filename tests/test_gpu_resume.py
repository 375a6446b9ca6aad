"""On a GPU, with several pictures side by side, a resumed night ends with the same bits."""

import sys
from hashlib import sha256
from pathlib import Path

import pytest

from comicgen.cli import main

pytestmark = pytest.mark.gpu

STORY = Path(__file__).parent.parent / "storyboards" / "demo.yaml"


def render(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, str]:
    """Draw what is not done; the digest of every picture there is then."""
    argv = ["comicgen", "render", str(STORY), "--output", str(folder), "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    pictures = folder.glob("p*/*.png")
    return {picture.name: sha256(picture.read_bytes()).hexdigest() for picture in pictures}


def test_pictures_drawn_again_beside_empty_lanes_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = render(monkeypatch, tmp_path)
    for picture in sorted(tmp_path.glob("p*/*.png"))[::3]:
        picture.unlink()

    assert render(monkeypatch, tmp_path) == whole
