"""What the project asks of the embedded model, and whether a report reaches it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vocabulary import PERSON

ATTRIBUTES = {
    "subject": "subject",
    "subject alone": "subject, where there is one",
    "subject of two": "subject, each of two",
    "setting": "setting",
    "time": "time of day",
    "style": "style",
    "shirt colour": "shirt colour of a single subject",
    "side": "left, right",
}
"""Names in the report, and in the card."""
COMPARED = tuple(name for name in ATTRIBUTES if name != "subject")
"""Without what mixes scenes of one subject and of two: not every size has both."""
OF_ONE = tuple(name for name in COMPARED if name != "subject of two")
"""What is asked of scenes with one subject."""
NOISE = 1.0
"""Points of a share that count as no change."""
LEAST = {"subject": 85, "setting": 95, "time": 95, "style": 95, "shirt colour": 80, "side": 90}
"""Percent that the project asks of drawn pictures."""

Rows = dict[str, dict[str, Any]]
"""A section of the report: its rows by what they are of."""


@dataclass(frozen=True)
class Report:
    """What evaluate.py wrote."""

    data: dict[str, Any]

    def rows(self, section: str) -> Rows:
        """None of them when the section was not measured."""
        return {row["what"]: row for row in self.data.get(section, [])}

    def drawn(self) -> dict[str, Any]:
        return self.rows("attributes").get("all: drawn", {})


def points(share: float | None, before: float | None) -> float | None:
    """The difference of two shares in percentage points."""
    return None if share is None or before is None else 100 * (share - before)


def signed(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}{unit}"  # never -0.0


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"


def trained_and_apart(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of pictures with one subject: of pairs that training showed, and of all others."""
    trained = report.rows("attributes").get("one subject: drawn", {})
    return trained, report.rows("pairs").get("never together: drawn", {})


@dataclass(frozen=True)
class Floor:
    """What the project asks, judged by what is printed. measured: the value in words."""

    asked: str
    measured: str
    reached: bool | None

    @classmethod
    def at_least(cls, asked: str, value: float | None, least: float, unit: str) -> "Floor":
        """value, least: in the unit."""
        if value is None:
            return cls(asked, "not measured", None)
        printed = f"{value:.{2 if unit == '' else 1}f}"
        return cls(asked, f"{printed}{unit}", float(printed) >= least)

    @classmethod
    def no_fall(cls, asked: str, falls: dict[str, float], most: float) -> "Floor":
        """falls: changes in points, by their names; none may be below -most."""
        if not falls:
            return cls(asked, "not measured", None)
        worst = min(falls, key=lambda name: falls[name])
        fall = signed(falls[worst])
        return cls(asked, f"{worst}: {fall} points", float(fall) >= -most)


def floors(report: Report) -> list[Floor]:
    decibels = [row["mean PSNR, dB"] for row in report.rows("vae").values()]
    vae = Floor.at_least("VAE at least 29 dB mean PSNR", min(decibels, default=None), 29, " dB")
    drawn = report.drawn()
    shares = [
        Floor.at_least(
            f"{ATTRIBUTES[name]} at least {least} %", _in_percent(drawn, name), least, " %"
        )
        for name, least in LEAST.items()
    ]
    return [vae, *shares, *_comparisons(report), *_adapter_floors(report), *_costs(report)]


def _in_percent(row: dict[str, Any], name: str) -> float | None:
    return None if row.get(name) is None else 100 * row[name]


def _falls(row: dict[str, Any], before: dict[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Changes in points of what both rows have."""
    changes = {ATTRIBUTES[name]: points(row.get(name), before.get(name)) for name in names}
    return {name: change for name, change in changes.items() if change is not None}


def _comparisons(report: Report) -> list[Floor]:
    trained, apart = trained_and_apart(report)
    rows = report.rows("sizes")
    square = rows.get("256x256: drawn", {})
    by_size = {
        f"{what.split(':')[0]}, {name}": fall
        for what, row in rows.items()
        if what.endswith(": drawn") and row is not square
        for name, fall in _falls(row, square, COMPARED).items()
    }
    return [
        Floor.no_fall(
            "subject and setting of pairs never together within 10 points of those in training",
            _falls(apart, trained, ("subject alone", "setting")),
            10,
        ),
        Floor.no_fall("no size more than 5 points below 256x256", by_size, 5),
    ]


def _adapter_floors(report: Report) -> list[Floor]:
    lines, noir, negative = (report.rows(name) for name in ("lineart", "noir", "negative"))
    f1 = lines.get("weight 1", {}).get("F1 of lines")
    before, after = noir.get("weight 0", {}), noir.get("weight 1", {})
    saturation = after.get("saturation less, %")
    without, with_it = [*negative.values()] or ({}, {})
    person = report.rows("people").get(f"{PERSON}: weight 1", {})
    return [
        Floor.at_least("F1 of `lineart` at weight 1 at least 0.8", f1, 0.8, ""),
        Floor.at_least("`noir` takes 80 % of the saturation", saturation, 80, " %"),
        Floor.no_fall(
            "subject and setting under `noir` within 10 points",
            _falls(after, before, ("subject", "setting")),
            10,
        ),
        Floor.at_least(
            f"`{PERSON}` recognised in 90 %", _in_percent(person, "recognised"), 90, " %"
        ),
        Floor.at_least("the negative prompt sharpens by 10 %", with_it.get("change, %"), 10, " %"),
        Floor.no_fall(
            f"and makes no attribute worse (by more than {NOISE:g} point)",
            _falls(with_it, without, ATTRIBUTES),
            NOISE,
        ),
    ]


def _costs(report: Report) -> list[Floor]:
    size = report.data["bytes"]["all"]
    took = {
        what: round(row["median seconds"], 2)
        for what, row in report.rows("speed").items()
        if row["device"] == "cpu"
    }
    measured, reached = "not measured", None
    if took:
        slowest = max(took, key=lambda what: took[what])
        measured, reached = f"{slowest}: {took[slowest]:.2f} s", took[slowest] <= 3
    return [
        Floor("all weights at most 40 MB", megabytes(size), round(size / 1e6, 2) <= 40),
        Floor("a picture in at most 3 s on two cores", measured, reached),
    ]
