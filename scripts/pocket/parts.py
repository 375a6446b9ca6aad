"""Takes a folder of weights apart into files of a bounded size, and puts it together again.

    python scripts/pocket/parts.py split FOLDER PARTS [--mebibytes 15]
    python scripts/pocket/parts.py join PARTS FOLDER

For a stage of training whose machine can only be reached with small files.
"""

import argparse
import io
import tarfile
from pathlib import Path

from plainly import plainly

MEBIBYTE = 1 << 20


def split(folder: Path, parts: Path, mebibytes: int = 15) -> list[Path]:
    """Write `folder` to numbered files in `parts`; returns them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".")
    data, size = packed.getvalue(), max(1, mebibytes) * MEBIBYTE
    starts = range(0, len(data), size)
    parts.mkdir(parents=True, exist_ok=True)
    for old in parts.glob("part-*"):
        old.unlink()
    files = []
    for n, start in enumerate(starts, 1):
        files.append(parts / f"part-{n:03}-of-{len(starts):03}")
        files[-1].write_bytes(data[start : start + size])
    return files


def join(parts: Path, folder: Path) -> None:
    """Put `folder` together from what `split` wrote."""
    files = sorted(parts.glob("part-*-of-*"), key=lambda file: (len(file.name), file.name))
    if not files or not files[-1].match(f"part-{len(files):03}-of-{len(files):03}"):
        raise SystemExit(f"{parts} holds {len(files)} parts, and not all that were written.")
    data = b"".join(file.read_bytes() for file in files)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take a folder apart, or put it together.")
    parser.add_argument("action", choices=["split", "join"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mebibytes", type=int, default=15, help="of each part")
    arguments = parser.parse_args()
    if arguments.action == "split":
        split(arguments.source, arguments.target, arguments.mebibytes)
    else:
        join(arguments.source, arguments.target)


if __name__ == "__main__":
    with plainly(tarfile.TarError):
        main()
