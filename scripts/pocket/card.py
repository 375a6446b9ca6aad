"""Writes the measured part of the model card from what was measured.

    python scripts/pocket/card.py REPORT TRAINING CARD

REPORT is the report.json of `evaluate.py`, TRAINING the training.json of `train.py`, and CARD the
Markdown file, comicgen/pocket/README.md, in which the text between the two marker comments is
replaced. Everything outside them is written by hand.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plainly import plainly
from vocabulary import PERSON

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
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
COLUMNS = ("stage", "processes", "on", "steps", "seconds", "scenes", "latents", "loss")
"""Figures of training that have a column; others share the last one."""

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


# Markdown.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns after the first are set to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def percent(share: float | None) -> str:
    """A share of 1."""
    return "-" if share is None else f"{100 * share:.1f} %"


def points(share: float | None, before: float | None) -> float | None:
    """The difference of two shares in percentage points."""
    return None if share is None or before is None else 100 * (share - before)


def signed(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}{unit}"  # never -0.0


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"


# The tables.


def vae_table(report: Report) -> str:
    return table(
        [
            "held-out scenes, encoded and decoded",
            "mean PSNR",
            "PSNR of the mean error",
            "values not finite",
        ],
        [
            [
                what,
                f"{row['mean PSNR, dB']:.2f} dB",
                f"{row['PSNR of the mean error, dB']:.2f} dB",
                str(row["values not finite"]),
            ]
            for what, row in report.rows("vae").items()
        ],
    )


def attributes_table(report: Report) -> str:
    rows = report.rows("attributes")
    sources = [rows[f"all: {what}"] for what in ("composed", "composed, coded", "drawn")]
    return table(
        ["read rightly", "asked", "composed", "composed, coded", "drawn"],
        [
            [shown, str(sources[0]["asked"][name]), *(percent(each[name]) for each in sources)]
            for name, shown in ATTRIBUTES.items()
        ],
    )


def pairs_table(report: Report) -> str:
    trained, apart = _trained_and_apart(report)
    ceiling = report.rows("pairs")["never together: composed"]
    return table(
        [
            "one subject, drawn",
            "known pairs",
            "never together",
            "points",
            "composed, never together",
        ],
        [
            [
                ATTRIBUTES[name],
                percent(trained.get(name)),
                percent(apart[name]),
                signed(points(apart[name], trained.get(name))),
                percent(ceiling[name]),
            ]
            for name in OF_ONE
        ],
    )


def _trained_and_apart(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    trained = report.rows("attributes").get("one subject: drawn", {})
    return trained, report.rows("pairs").get("never together: drawn", {})


def sizes_table(report: Report) -> str:
    return table(
        ["size", *(ATTRIBUTES[name] for name in COMPARED)],
        [
            [what, *(percent(row.get(name)) for name in COMPARED)]
            for what, row in report.rows("sizes").items()
        ],
    )


def lineart_table(report: Report) -> str:
    names = ("subject", "setting", "style")
    return table(
        ["`lineart`", "F1 of lines", *(ATTRIBUTES[name] for name in names)],
        [
            [_ceiling(what), f"{row['F1 of lines']:.3f}", *(percent(row[name]) for name in names)]
            for what, row in report.rows("lineart").items()
        ],
    )


def _ceiling(what: str) -> str:
    """A row is of a weight, or of the scenes' own lines after the VAE."""
    return what if what.startswith("weight") else f"{what}: the ceiling of F1"


def noir_table(report: Report) -> str:
    return table(
        ["`noir`", "saturation", "less", "chroma, of 255", "less", "subject", "setting"],
        [
            [
                what,
                f"{row['saturation']:.3f}",
                f"{row['saturation less, %']:.1f} %",
                f"{row['chroma']:.1f}",
                f"{row['chroma less, %']:.1f} %",
                percent(row["subject"]),
                percent(row["setting"]),
            ]
            for what, row in report.rows("noir").items()
        ],
    )


def people_table(report: Report) -> str:
    return table(
        ["in settings new to the LoRA", "recognised", "setting"],
        [
            [what, percent(row["recognised"]), percent(row.get("setting"))]
            for what, row in report.rows("people").items()
        ],
    )


def negative_table(report: Report) -> str:
    return table(
        ["negative prompt", "variance of the Laplacian", "change", *ATTRIBUTES.values()],
        [
            [
                what,
                f"{row['variance of the Laplacian']:.0f}",
                signed(row["change, %"], " %"),
                *(percent(row[name]) for name in ATTRIBUTES),
            ]
            for what, row in report.rows("negative").items()
        ],
    )


def bytes_table(report: Report) -> str:
    return table(
        ["file", "size"], [[file, megabytes(size)] for file, size in report.data["bytes"].items()]
    )


def speed_table(report: Report) -> str:
    return table(
        ["one picture", "median seconds", "CPU threads"],
        [
            [what, f"{row['median seconds']:.2f}", str(row["threads"])]
            for what, row in report.rows("speed").items()
        ],
    )


TABLES = {
    "vae": ("VAE", vae_table),
    "attributes": ("Attributes", attributes_table),
    "pairs": ("Pairs that training never showed", pairs_table),
    "sizes": ("Sizes", sizes_table),
    "lineart": ("Line art", lineart_table),
    "noir": ("Noir", noir_table),
    "people": ("Character", people_table),
    "negative": ("Negative prompt", negative_table),
    "bytes": ("Bytes", bytes_table),
    "speed": ("Seconds", speed_table),
}
"""Titles and makers, by section."""


# The floors.


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
    trained, apart = _trained_and_apart(report)
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
    asked = "a picture in at most 3 s on two cores"
    slowest = max(took, key=lambda what: took[what], default="")
    return [
        Floor("all weights at most 40 MB", megabytes(size), round(size / 1e6, 2) <= 40),
        Floor(asked, f"{slowest}: {took[slowest]:.2f} s", took[slowest] <= 3)
        if took
        else Floor(asked, "not measured", None),
    ]


def floors_table(report: Report) -> str:
    words = {True: "yes", False: "no", None: "-"}
    return table(
        ["floor", "measured", "reached"],
        [[each.asked, each.measured, words[each.reached]] for each in floors(report)],
    )


# How it was measured and trained.


def circumstances(report: Report) -> str:
    about, set_to = report.data["environment"], report.data["settings"]
    versions = ", ".join(
        f"{name} {about[name]}"
        for name in ("torch", "diffusers", "transformers", "peft", "resvg_py")
        if name in about
    )
    return "\n".join(
        [
            f"Measured on {about['device']} in {about['precision']} ({about['processor']}, "
            f"{about['threads']} threads; Python {about['python']}, {versions}) with",
            "",
            "```",
            set_to["command"],
            "```",
            "",
            f"on sets of {set_to['prompts']} prompts, with facts and noise from seed "
            f"{set_to['first seed']} on, Euler, {set_to['steps']} steps, guidance "
            f"{set_to['guidance']:g}. Not every question is asked of every picture. Seconds are "
            "medians of three, on a CPU in float32. What a picture shows is told by two small "
            "networks in `scripts/pocket/weights/`, which learnt from composed scenes alone. They "
            "choose the likeliest of the known words, and so overlook what was not asked for; "
            "what they read of composed scenes with the same facts tells how far to trust them. "
            "Points are differences of shares before they are rounded; a floor "
            "is judged by what is printed.",
            "",
            "SHA-256 of the files `*.safetensors`, one after the other by their paths: "
            f"`{set_to['weights, SHA-256']}`; of both readers: `{set_to['readers, SHA-256']}`.",
        ]
    )


def training_table(stages: list[dict[str, Any]]) -> str:
    """Stages in the order in which they were run; one row for each adapter."""
    rows = []
    for stage in stages:
        name = stage["stage"]
        inner = {part: value for part, value in stage.items() if isinstance(value, dict)}
        common = {key: value for key, value in stage.items() if key not in inner}
        parts = {f"`{name}`: `{part}`": common | value for part, value in inner.items()}
        rows += [_training_row(*part) for part in (parts or {f"`{name}`": stage}).items()]
    head = ["stage", "processes", "each on", "steps", "seconds", "scenes", "loss", "also"]
    return table(head, rows)


def _training_row(name: str, figures: dict[str, Any]) -> list[str]:
    scenes = figures.get("scenes") or figures.get("latents", 0) // 2  # each is mirrored as well
    also = {key: value for key, value in figures.items() if key not in COLUMNS}
    return [
        name,
        _count(figures.get("processes")),
        figures.get("on", "-"),
        _count(figures.get("steps")),
        _count(round(figures["seconds"]) if "seconds" in figures else None),
        _count(scenes or None),
        f"{figures['loss']:.4f}" if "loss" in figures else "-",
        ", ".join(f"{key} {value:,}" for key, value in also.items()) or "-",
    ]


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def measured(report: Report, stages: list[dict[str, Any]]) -> str:
    """The Markdown between the markers."""
    parts = ["## What was measured", circumstances(report), floors_table(report)]
    for section, (title, make) in TABLES.items():
        if report.data.get(section):
            parts += [f"### {title}", make(report)]
    parts += [
        "## How it was trained",
        "Stage after stage, in as many processes and for as many seconds as the table says, by",
        "```\ntorchrun --nproc-per-node PROCESSES scripts/pocket/train.py STAGE --work DIR "
        "--seconds SECONDS\n```",
        "where the stage `adapters` has a row for each. `train.py all` runs all of them, in one "
        "process; `scripts/pocket/README.md` tells what each does.",
        training_table(stages),
    ]
    return "\n\n".join(parts)


def replaced(card: str, text: str) -> str:
    """The card with `text` between the markers."""
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The card needs the two lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _read(file: Path, kind: type) -> Any:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"{file} holds no JSON ({error}).") from error
    if not isinstance(value, kind) or not value:
        raise SystemExit(f"{file} holds no record: evaluate.py and train.py write what is needed.")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the measured part of the model card.")
    parser.add_argument("report", type=Path)
    parser.add_argument("training", type=Path)
    parser.add_argument("card", type=Path)
    arguments = parser.parse_args()
    report = Report(_read(arguments.report, dict))
    stages = _read(arguments.training, list)
    card = arguments.card.read_text(encoding="utf-8")
    arguments.card.write_text(replaced(card, measured(report, stages)), encoding="utf-8")


if __name__ == "__main__":
    with plainly(AttributeError, KeyError, TypeError, ValueError):
        main()
