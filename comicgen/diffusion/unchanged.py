"""Whether files that are read late in a run are still those that the run was planned with.

Ask after reading: what was read before a file changed is what was planned.
"""

from collections.abc import Iterable
from pathlib import Path

from comicgen.digests import digest_file, digest_files
from comicgen.errors import CandidateError


def check_unchanged(path: Path, digest: str, files: Iterable[Path] | None = None) -> None:
    """Compare a file, or these files of a folder, with the digest that the storyboard holds.

    Raises:
        CandidateError: they have changed since, or cannot be read.
    """
    try:
        now = digest_file(path) if files is None else digest_files(path, files)
    except OSError as error:
        raise CandidateError(f"{path}: cannot be read ({error.strerror}); put it back") from error
    if now != digest:
        raise CandidateError(
            f"{path}: has changed since the storyboard was read; give the command again"
        )
