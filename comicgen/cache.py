"""What comicgen remembers of this machine between runs: JSON files that may be lost any time."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path | None:
    """Where such files lie; None where there is neither a setting nor a home."""
    if own := os.environ.get("COMICGEN_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
        return base / "comicgen" if base.is_absolute() else None
    return None


def read_cache(file: Path | None) -> Any:
    """The JSON in a file; an empty object where it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError, RecursionError):
        return {}


def write_cache(file: Path | None, content: Any) -> None:
    """Replace the file, whole; one that cannot be written is done without."""
    if file is not None:
        with suppress(OSError):
            _write(file, content)


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as temporary:
            json.dump(content, temporary, separators=(",", ":"))
        os.replace(name, file)
    except OSError:
        os.unlink(name)
        raise
