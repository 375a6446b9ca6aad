"""What a finished pocket model can do: figures, and sheets of pictures to look at.

    python scripts/pocket/evaluate.py                                        # a GPU, minutes
    python scripts/pocket/evaluate.py --prompts 100 --only vae attributes    # a CPU, minutes
    python scripts/pocket/evaluate.py DIR --out FOLDER [--device cuda]

measures what there is of DIR/model (a diffusers folder), DIR/loras/noir.safetensors,
DIR/loras/<person>.safetensors and DIR/controlnets/lineart/; DIR is the shipped model unless told
otherwise. Writes FOLDER/report.json (after each section, so that a run cut short is not lost) and
FOLDER/sheets/*.png, and prints tables on stderr. The sections draw so many pictures for each of
the prompts:

    attributes, sizes, lineart, noir, negative   1, which they share
    pairs                                        1
    sizes                                        4
    lineart, noir, people                        2 each
    negative                                     1
    vae, speed                                   none

Facts and prompts are held out from training. What a picture shows is told by the readers of
`reader.py`, which never learnt from a drawn picture; how far they can be trusted is told by the
same figures of composed scenes with the same facts.
"""

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import diffusers
import torch
import transformers
from drawing import GUIDANCE, STEPS, load_pipeline
from networks import SHIPPED
from plainly import a_number, plainly
from reader import Reader, Who, load
from safetensors import SafetensorError, safe_open
from scenes import HOLD_OUT_SEED
from sections import SECTIONS, Row, Studio, people_in, processor, sections_for
from training import hush
from unseen import composed

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
OUT = Path(__file__).parents[2] / "build" / "evaluation"


def weights_in(folder: Path) -> list[Path]:
    parts = ("model", "loras", "controlnets")
    return sorted(file for part in parts for file in (folder / part).rglob("*.safetensors"))


def sizes_of(folder: Path) -> dict[str, int]:
    """Bytes of each file of weights, and of all."""
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in weights_in(folder)}
    return {**sizes, "all": sum(sizes.values())}


def digest(files: Iterable[Path]) -> str:
    """SHA-256 of the files' contents, one after the other."""
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()


def environment(device: torch.device) -> dict[str, str | int]:
    cards = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    return {
        "device": cards[0] if cards else "CPU",
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "precision": "float16" if cards else "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
        "peft": version("peft"),
        "resvg_py": version("resvg_py"),
    }


def show(section: str, rows: list[Row]) -> None:
    """The rows as a table on stderr."""
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "asked"))
    cells = [columns, *([_text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{section}", file=sys.stderr)
    for line in cells:
        first, *others = (text for text in zip(line, widths, strict=True))
        padded = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
        print("  ".join(padded), file=sys.stderr, flush=True)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _set_up() -> None:
    """Exact convolutions of float32, the fastest of float16."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
    hush()


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of pictures")
    return int(text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a finished pocket model.")
    parser.add_argument("folder", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--out", type=Path, default=OUT, help="for the report and the sheets")
    parser.add_argument("--prompts", type=_count, default=1000, help="pictures in a row")
    strength = partial(a_number, what="strength of guidance")
    parser.add_argument("--guidance", type=strength, default=GUIDANCE)
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    parser.add_argument("--device", choices=there, default=there[-1])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--reader", type=Path, default=WEIGHTS_FOLDER / "reader.safetensors")
    parser.add_argument("--who", type=Path, default=WEIGHTS_FOLDER / "who.safetensors")
    return parser.parse_args()


def _command(arguments: argparse.Namespace) -> str:
    """What makes the same report of the same weights."""
    some = arguments.only if set(arguments.only) != set(SECTIONS) else ()
    only = " ".join(["", "--only", *some] if some else [])
    strength = "" if arguments.guidance == GUIDANCE else f" --guidance {arguments.guidance:g}"
    return f"python scripts/pocket/evaluate.py --prompts {arguments.prompts}{strength}{only}"


def _told_if_broken(file: Path) -> None:
    """Before the scenes are composed."""
    try:
        with safe_open(file, "pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"{file} cannot be read ({error}).") from error


def main() -> None:
    arguments = parsed()
    folder, device = arguments.folder, torch.device(arguments.device)
    wanted = [name for name in sections_for(folder) if name in arguments.only]
    if not wanted:
        raise SystemExit(f"{folder} holds nothing for {' '.join(arguments.only)}.")
    readers = (arguments.reader, arguments.who)
    for file in (folder / "model" / "model_index.json", *readers):
        if not file.exists():
            raise SystemExit(f"{file} is not there; scripts/pocket/train.py makes it.")
    for file in (*readers, *weights_in(folder)):
        _told_if_broken(file)
    arguments.out.mkdir(parents=True, exist_ok=True)
    _set_up()
    sets = composed(arguments.prompts, wanted, people_in(folder))
    studio = Studio(
        folder,
        arguments.out,
        load_pipeline(folder / "model", device),
        load(Reader, arguments.reader, device),
        load(Who, arguments.who, device),
        sets,
        arguments.guidance,
    )
    report = {
        "bytes": sizes_of(folder),
        "settings": {
            "command": _command(arguments),
            "prompts": arguments.prompts,
            "first seed": HOLD_OUT_SEED,
            "steps": STEPS,
            "guidance": arguments.guidance,
            "weights, SHA-256": digest(weights_in(folder)),
            "readers, SHA-256": digest(readers),
        },
        "environment": environment(device),
    }
    for section in wanted:
        report[section] = SECTIONS[section](studio)
        show(section, report[section])
        (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    with plainly(SafetensorError):
        main()
