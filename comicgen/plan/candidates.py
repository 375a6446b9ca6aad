"""Seeds and fingerprints: what one candidate is, as the author asked for it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from comicgen.plan.batch import Candidate
from comicgen.plan.past import Memory
from comicgen.storyboard import Control, Panel, Storyboard, in_order

RECIPE = 3
"""Bumped when our own code draws other pixels from the same fields; the changelog says why."""

SEEDS = 2**32
"""Seeds are 0 to 2^32 - 1: torch's CPU generator ignores higher bits."""


def every_candidate(storyboard: Storyboard, memory: Memory) -> list[Candidate]:
    """All candidates of the storyboard and those asked for beyond its counts, in story order."""
    return [
        candidate
        for panel in storyboard.panels
        for candidate in _candidates(storyboard, panel, memory)
    ]


def own_seed(storyboard: Storyboard, panel: Panel, number: int) -> int:
    """The seed that the storyboard alone gives a candidate, whatever was asked for since."""
    base = stable_hash(storyboard.seed, panel.id) if panel.seed is None else panel.seed
    return (base + number - 1) % SEEDS


def stable_hash(*words: int | str) -> int:
    """32 bits of SHA-256 that are the same on every machine and in every year."""
    return int.from_bytes(hashlib.sha256(_canonical(words)).digest()[:4], "big")


def fingerprint(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a candidate's fields, as hexadecimal digits."""
    return hashlib.sha256(_canonical(fields)).hexdigest()


def _candidates(storyboard: Storyboard, panel: Panel, memory: Memory) -> list[Candidate]:
    shared = _fields(storyboard, panel)
    found = []
    for number in range(1, panel.candidates + memory.more.get(panel.id, 0) + 1):
        seed = own_seed(storyboard, panel, number)
        reseed = memory.reseeds.get(f"{panel.id}-c{number:02d}")
        if reseed and reseed.instead_of == seed:
            seed = reseed.seed
        fields = {**shared, "seed": seed}
        found.append(Candidate(panel, number, seed, fields, fingerprint(fields)))
    return found


def _fields(storyboard: Storyboard, panel: Panel) -> dict[str, Any]:
    """What all candidates of a panel share; files by their digests, numbers in one spelling."""
    fields = {
        "model": storyboard.model.digest,
        "loras": [[lora.digest, _number(lora.weight)] for lora in in_order(panel.loras)],
        "control": _control(panel.control) if panel.control else None,
        "prompt": panel.prompt,
        "negative": panel.negative,
        "width": panel.size.width,
        "height": panel.size.height,
        "steps": panel.steps,
        "sampler": panel.sampler,
        "guidance": _number(panel.guidance),
        "recipe": RECIPE,
    }
    return fields if storyboard.precision is None else {**fields, "precision": storyboard.precision}


def _control(control: Control) -> dict[str, Any]:
    return {
        "model": control.model.digest,
        "image": control.image_digest,
        "weight": _number(control.weight),
        "start": _number(control.start),
        "end": _number(control.end),
    }


def _number(value: float) -> float:
    return float(value) + 0.0  # makes 1 into 1.0, and -0.0 into 0.0


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
