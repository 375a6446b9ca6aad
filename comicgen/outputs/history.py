"""Pictures that another took the place of. None is ever overwritten or kept twice."""

import os
from hashlib import sha256
from itertools import count
from pathlib import Path

from comicgen.outputs.disk import make_folder, sync_folder

HISTORY = "history"


def retire(folder: Path, path: Path, successor: bytes) -> None:
    """Move the file `path` of an output folder into its history, unless it equals `successor`.

    A folder in its place is moved too; what is neither, as a link to nothing, may be replaced.
    """
    content = path.read_bytes() if path.is_file() else None
    if path.is_dir() or content not in (None, successor):
        make_folder(folder / HISTORY)
        _move(path, folder / HISTORY, content)


def _move(path: Path, history: Path, content: bytes | None) -> None:
    digest = sha256(content).hexdigest()[:16] if content is not None else "folder"
    for number in count(1):
        again = f"-{number}" if number > 1 else ""
        kept = history / f"{path.stem}-{digest}{again}{path.suffix}"
        if not os.path.lexists(kept):
            os.rename(path, kept)
            sync_folder(history)
            return
        if kept.is_file() and kept.read_bytes() == content:
            return
