"""The door: the author's file in, a typed storyboard out."""

from pathlib import Path

from comicgen.errors import Complaint, StoryboardError
from comicgen.storyboard.complaints import Complaints
from comicgen.storyboard.marked import Entries, read_yaml
from comicgen.storyboard.reading import read_storyboard
from comicgen.storyboard.story import Storyboard


def load(path: Path) -> Storyboard:
    """Read a storyboard and look at every file it names; paths start at its folder.

    Raises:
        StoryboardError: with all complaints about it at once, in the order of their places.
    """
    complaints = Complaints()
    root = read_yaml(path, complaints)
    if not isinstance(root, Entries):
        cure = "write panels: and below it a list of panels"
        raise StoryboardError([Complaint(root.place, "a storyboard must be a mapping", cure)])
    return read_storyboard(path, root, complaints)
