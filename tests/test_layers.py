"""Who may import whom: the tree that docs/design.md draws, read from the code itself."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import comicgen

ROOT = Path(comicgen.__file__).parent

DESIGN = ROOT.parent / "docs" / "design.md"


def table() -> dict[str, set[str]]:
    """The parts that each part may import, beside itself and `errors`, as the design says."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w, -]+) \|$", DESIGN.read_text("utf-8"), re.M)
    everything = {part for part, _ in rows}
    names = {part: set(re.findall(r"\w+", cell)) for part, cell in rows}
    return {part: everything if cell == {"all"} else cell for part, cell in names.items()}


MAY_IMPORT = table() | {"__main__": {"cli"}}

HEAVY = {"torch", "diffusers", "transformers", "peft"}


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def part_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imported(module: Path, source: str) -> Iterator[str]:
    """Full names of everything a module imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ["comicgen", *module.parent.parts][: len(module.parts) - node.level + 1]
            base = ".".join((start if node.level else []) + [node.module or ""]).strip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports_of(module: Path) -> frozenset[str]:
    return frozenset(imported(module, (ROOT / module).read_text(encoding="utf-8")))


def parts(names: Iterable[str]) -> set[str]:
    """The parts of comicgen among imported names; everyone may have `errors`."""
    split = [name.split(".") for name in names]
    found = {name[1] for name in split if name[0] == "comicgen" and len(name) > 1}
    return found - {"__version__", "errors"}


def packages(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("module", modules(), ids=str)
def test_a_module_imports_only_the_parts_below_it(module: Path) -> None:
    part = part_of(module)

    assert parts(imports_of(module)) <= MAY_IMPORT.get(part, set()) | {part}


@pytest.mark.parametrize("module", modules(), ids=str)
def test_torch_and_its_company_are_imported_only_under_diffusion(module: Path) -> None:
    assert part_of(module) == "diffusion" or not packages(imports_of(module)) & HEAVY


def test_the_design_names_every_part_and_no_other() -> None:
    assert {part_of(module) for module in modules()} - {"__init__"} == MAY_IMPORT.keys()


def test_relative_and_hidden_imports_are_seen() -> None:
    source = """
from ..outputs import x
from . import y
from .. import cli
def f():
    import torch.nn
    from comicgen import render
"""
    names = set(imported(Path("plan/bad.py"), source))

    assert parts(names) == {"outputs", "plan", "cli", "render"}
    assert packages(names) == {"comicgen", "torch"}
