"""Who may import whom: the tree that docs/design.md draws, read from the code itself."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import comicgen

ROOT = Path(comicgen.__file__).parent

# Every part may also import `errors` and itself; `comicgen` stands for the version.
MAY_IMPORT = {
    "errors": set(),
    "sizes": set(),
    "digests": set(),
    "pocket": set(),
    "environment": set(),
    "prompts": set(),
    "weights": set(),
    "storyboard": {"sizes", "prompts", "weights", "digests", "pocket"},
    "plan": {"storyboard", "sizes"},
    "engine": {"plan"},
    "sketch": {"engine", "plan"},
    "outputs": {"plan", "engine", "environment", "storyboard"},
    "render": {"plan", "engine", "outputs"},
    "diffusion": {
        "weights",
        "prompts",
        "engine",
        "environment",
        "plan",
        "storyboard",
        "sizes",
    },
}
MAY_IMPORT_ALL = {"cli", "__main__"}

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
    if part in MAY_IMPORT_ALL:
        return

    assert parts(imports_of(module)) <= MAY_IMPORT.get(part, set()) | {part}


@pytest.mark.parametrize("module", modules(), ids=str)
def test_torch_and_its_company_are_imported_only_under_diffusion(module: Path) -> None:
    assert part_of(module) == "diffusion" or not packages(imports_of(module)) & HEAVY


@pytest.mark.parametrize("module", modules(), ids=str)
def test_ray_is_imported_only_by_the_fleet(module: Path) -> None:
    assert part_of(module) == "fleet" or "ray" not in packages(imports_of(module))


def test_every_part_stands_in_the_table() -> None:
    there = {part_of(module) for module in modules()} - {"__init__"}

    assert there <= MAY_IMPORT.keys() | MAY_IMPORT_ALL


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
