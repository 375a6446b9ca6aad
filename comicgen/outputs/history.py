"""Pictures that another took the place of. None is ever overwritten or kept twice."""

import os
from hashlib import sha256
from itertools import count
from pathlib import Path

from comicgen.outputs.disk import make_folder, sync_folder

HISTORY = "history"


def retire(folder: Path, path: Path, successor: bytes) -> None:
    """Move the file `path` of an output folder into its history, unless it equals `successor`."""
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return
    if old != successor:
        make_folder(folder / HISTORY)
        _move(path, folder / HISTORY, old)


def _move(path: Path, history: Path, content: bytes) -> None:
    digest = sha256(content).hexdigest()[:16]
    for number in count(1):
        again = f"-{number}" if number > 1 else ""
        kept = history / f"{path.stem}-{digest}{again}{path.suffix}"
        if not kept.exists():
            os.rename(path, kept)
            sync_folder(history)
            return
        if kept.read_bytes() == content:
            return
