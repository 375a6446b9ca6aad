"""What drawing costs on this machine, remembered between runs. Known without torch.

There is a file for each GPU with its driver, torch, precision and architecture of model; the
weights do not matter, for other numbers are multiplied as fast. Newer measurements take the place
of older ones, but of openings the extremes stay. A file that is damaged counts as absent, and one
that cannot be written is done without.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Self, get_args

from comicgen.cache import cache_folder, read_cache, write_cache
from comicgen.engine import Measured
from comicgen.environment import Environment, driver
from comicgen.numerics import FUSED, Numerics, full_name
from comicgen.plan import Bucket, Figure, Figures
from comicgen.sizes import Size

Row = dict[str, Any]

_STEP = ("eager", "replayed", "first_use")
_SECONDS = (*_STEP, "decode", "cold", "warm")
_BYTES = ("bytes", "decode_bytes")
_MONTH = 30 * 24 * 3600


class Calibration:
    """The measurements of one machine and architecture.

    A row is what was measured of one bucket with one numerics, or of opening the model with one;
    both are told by their full names.
    """

    def __init__(self, machine: Mapping[str, str | int], file: Path | None) -> None:
        """`file` None remembers nothing; `machine` is written into it for who reads it."""
        self.file = file
        self._machine = machine
        self._known = _read(file)
        self._new: dict[str, Row] = {}
        self._lock = Lock()  # a run tells from the thread that draws and the one that writes

    @property
    def saved(self) -> bool:
        """Whether the next run will know all of it, or what others measured later."""
        found = {key: str(row["date"]) for key, row in _read(self.file).items()}
        known = self._known.items()
        return not self._new and all(found.get(key, "") >= row["date"] for key, row in known)

    @classmethod
    def here(cls, environment: Environment, model: Path) -> Self:
        """What is remembered of this environment and of models like that in the folder `model`."""
        machine = _machine(environment, model)
        name = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
        folder = cache_folder()
        return cls(machine, folder / f"calibration-{name}.json" if folder else None)

    def take(self, measured: Measured) -> None:
        """Remember what an engine told; what it did not measure stays as it was."""
        told = asdict(measured)
        known = {name: told[name] for name in (*_STEP, "decode") if told[name] is not None}
        if measured.bytes:
            known["decode_bytes" if measured.eager is None else "bytes"] = measured.bytes
        self._remember({"numerics": measured.numerics, "bucket": told["bucket"], **known})

    def opened(self, numerics: str, seconds: float) -> None:
        """Remember how long opening an engine took: the longest ever, as `cold`, and shortest."""
        self._remember({"numerics": numerics, "cold": seconds, "warm": seconds})

    def save(self) -> None:
        """Add what is new to the file, beside what others have added meanwhile."""
        if self._new:
            self._known = _merged(self._known, _merged(_read(self.file), self._new))
            rows = list(self._known.values())
            write_cache(self.file, {"machine": self._machine, "rows": rows})
            self._new = {}

    def figures(self, environment: Environment) -> Figures:
        """What a plan may use: plain numerics, and fused ones as they are now."""
        kinds: tuple[Numerics, ...] = get_args(Numerics)
        names = {full_name(each, environment.hardware, environment.torch): each for each in kinds}
        buckets: dict[tuple[Numerics, Bucket], Figure] = {}
        decode: dict[tuple[Numerics, Size], float] = {}
        opening: dict[Numerics, float] = {}
        for kind, row in self._rows(names):
            if "bucket" not in row:
                opening[kind] = row["warm"]
                continue
            bucket = _bucket(row["bucket"])
            eager, replayed, first_use = (row.get(name) for name in _STEP)
            most = max(row.get(name, 0) for name in _BYTES)
            buckets[kind, bucket] = Figure(eager, replayed, first_use, most)
            if "decode" in row:
                decode[kind, bucket.size] = row["decode"]
        return Figures(buckets, decode, opening)

    def _rows(self, names: Mapping[str, Numerics]) -> Iterator[tuple[Numerics, Row]]:
        """The rows of these numerics, the newest last."""
        for row in sorted(self._known.values(), key=lambda row: str(row["date"])):
            if row["numerics"] in names:
                yield names[row["numerics"]], row

    def _remember(self, row: Row) -> None:
        new = {_key(row): {**row, "date": datetime.now(UTC).isoformat(timespec="seconds")}}
        with self._lock:
            self._new, self._known = _merged(self._new, new), _merged(self._known, new)


def _machine(environment: Environment, model: Path) -> dict[str, str | int]:
    """What measurements depend on, beside numerics and bucket."""
    return {
        "gpu": environment.hardware,
        "driver": driver(),
        "torch": environment.torch,
        "precision": environment.precision,
        "architecture": _architecture(model),
        "recipe": FUSED,
    }


def _architecture(model: Path) -> str:
    """A digest of how the networks are built, whatever their weights."""
    configs = (model / part / "config.json" for part in ("unet", "vae"))
    return hashlib.sha256(b"\0".join(config.read_bytes() for config in configs)).hexdigest()


def _key(row: Row) -> str:
    return json.dumps([row["numerics"], row.get("bucket")], sort_keys=True)


def _merged(older: Mapping[str, Row], newer: Mapping[str, Row]) -> dict[str, Row]:
    """All rows; in each what is newer, and what only the older one has.

    Of openings the shortest and the longest of either.
    """
    return {**older, **{key: _joined(older.get(key, {}), row) for key, row in newer.items()}}


def _joined(older: Row, newer: Row) -> Row:
    both = {**older, **newer}
    for name, choose in (("warm", min), ("cold", max)):
        if found := [row[name] for row in (older, newer) if name in row]:
            both[name] = choose(found)
    return both


def _read(file: Path | None) -> dict[str, Row]:
    try:
        rows = [_sound(row) for row in read_cache(file)["rows"]]
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}
    return {_key(row): row for row in rows}


def _sound(row: Row) -> Row:
    """The row, if it is one.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is not.
    """
    seconds = [row[name] for name in _SECONDS if name in row]
    if not all(type(each) in (int, float) and 0 < each < _MONTH for each in seconds):
        raise ValueError(row)
    taken = [row.get(name, 0) for name in _BYTES]
    if not all(type(each) is int and 0 <= each < 2**50 for each in taken):
        raise ValueError(row)
    if "bucket" in row:
        _bucket(row["bucket"])
    elif "warm" not in row:
        raise KeyError("warm")
    if not isinstance(row["numerics"], str) or not isinstance(row["date"], str):
        raise TypeError(row)
    return row


def _bucket(told: Mapping[str, Any]) -> Bucket:
    size = told["size"]
    counts = [told["batch"], size["width"], size["height"], told["chunks"], told["controls"]]
    if not all(type(count) is int for count in counts) or type(told["guided"]) is not bool:
        raise ValueError(told)
    batch, width, height, chunks, controls = counts
    return Bucket(batch, Size(width, height), chunks, controls, told["guided"])
