"""Writes the measured part of the model card from what was measured.

    python scripts/pocket/card.py REPORT TRAINING CARD

REPORT is the report.json of `evaluate.py`, TRAINING the training.json of `train.py`, and CARD the
Markdown file, comicgen/pocket/README.md, in which the text between the two marker comments is
replaced. Everything outside them is written by hand.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from floors import (
    ATTRIBUTES,
    COMPARED,
    OF_ONE,
    Report,
    floors,
    megabytes,
    points,
    signed,
    trained_and_apart,
)
from plainly import plainly, read_json

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
COLUMNS = ("stage", "processes", "on", "steps", "seconds", "scenes", "latents", "loss")
"""Figures of training that have a column; others share the last one."""

# Markdown.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns after the first are set to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def percent(share: float | None) -> str:
    """A share of 1."""
    return "-" if share is None else f"{100 * share:.1f} %"


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
    trained, apart = trained_and_apart(report)
    composed = report.rows("pairs")["never together: composed"]
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
                percent(composed[name]),
            ]
            for name in OF_ONE
        ],
    )


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
    value = read_json(file)
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
