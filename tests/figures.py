"""What a test measured, printed, and kept as JSON where COMICGEN_FIGURES names a folder."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comicgen.environment import current


def record(name: str, values: Mapping[str, Any]) -> None:
    """Print the figures, and write them to `name`.json with the machine they come from."""
    machine = current("auto", None)
    text = json.dumps(
        {
            "hardware": machine.hardware,
            "torch": machine.torch,
            "diffusers": machine.diffusers,
            **values,
        },
        indent=1,
    )
    print(f"{name}: {text}")
    if folder := os.environ.get("COMICGEN_FIGURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{name}.json").write_text(text + "\n")
