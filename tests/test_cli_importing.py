"""What drawing needs is imported, and its kernels are compiled by a process of their own."""

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comicgen.cli import compiling, importing
from comicgen.cli.compiling import Compiling
from comicgen.cli.situation import Wish
from comicgen.environment import Environment


class Told:
    """A process that is asked for, and what it is told."""

    def __init__(self, log: list[str], device: str) -> None:
        self.log = log
        log.append(f"begin {device}")

    def wait(self) -> None:
        self.log.append("wait")

    def end(self) -> None:
        self.log.append("end")


def environment(device: str, numerics: str = "plain") -> Environment:
    return Environment(device, "a GPU", 0, "fp16", "2.11.0", "0.42.1", "5.17.0", numerics)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done where no engine has been imported yet, on a machine with a GPU."""
    done: list[str] = []

    def imported(name: str) -> None:
        done.append(f"import {name}, {'looking' if gc.isenabled() else 'not looking'}")
        monkeypatch.setitem(sys.modules, name, gc)

    monkeypatch.setattr(importing, "_ENGINE", "engine")
    monkeypatch.setattr(importing, "import_module", imported)
    monkeypatch.setattr(importing, "Compiling", lambda device: Told(done, device))
    monkeypatch.setattr(importing, "current", lambda device, precision: environment(device))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    return done


IMPORT = ["import engine, not looking", "freeze"]


def test_an_engine_is_imported_once_and_never_looked_through_for_garbage(log: list[str]) -> None:
    importing.import_engine()
    importing.import_engine()

    assert log == IMPORT
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("device", "wish", "begun"),
    [
        ("cuda:1", "auto", ["begin cuda:1"]),
        ("cuda", "fused", ["begin cuda"]),
        ("cuda", "plain", []),
        ("cpu", "auto", []),
    ],
)
def test_kernels_are_compiled_meanwhile_where_they_may_be_drawn_with(
    device: str, wish: Wish, begun: list[str], log: list[str]
) -> None:
    importing.prepare(device, wish)
    assert log == [*begun, *IMPORT]

    importing.prepare(device, wish)  # by then whoever draws does all that is left
    assert log == [*begun, *IMPORT]
    importing.settle_kernels(environment(device))


@pytest.mark.parametrize(("numerics", "told"), [("fused-1234abcd", "wait"), ("plain", "end")])
def test_kernels_are_waited_for_once_and_only_where_they_are_drawn_with(
    numerics: str, told: str, log: list[str]
) -> None:
    importing.prepare("cuda", "auto")
    importing.settle_kernels(environment("cuda", numerics))
    importing.settle_kernels(environment("cuda", numerics))

    assert log == ["begin cuda", *IMPORT, told]


def test_without_another_process_kernels_are_compiled_later(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(device: str) -> Told:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(importing, "Compiling", compiling)
    importing.prepare("cuda", "auto")
    importing.settle_kernels(environment("cuda", "fused-1234abcd"))

    assert log == IMPORT


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The processes that are begun."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", begin)
    yield processes
    for each in processes:
        each.kill()
        each.communicate()


def test_what_lies_where_the_author_is_is_not_imported(
    begun: list["subprocess.Popen[bytes]"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU kernels do not work, so it ends with 1."""
    (tmp_path / "torch.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    Compiling("cpu").wait()

    assert [each.returncode for each in begun] == [1]
    assert not (tmp_path / "imported").exists()


@pytest.mark.gpu
def test_what_it_compiled_is_not_compiled_again(
    begun: list["subprocess.Popen[bytes]"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    Compiling("cuda").wait()
    compiled = set(tmp_path.rglob("*.cubin"))
    Compiling("cuda").wait()

    assert [each.returncode for each in begun] == [0, 0]
    assert len(compiled) > 10
    assert set(tmp_path.rglob("*.cubin")) == compiled


def test_who_waits_does_so_for_a_while(
    begun: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "PATIENCE", 0)
    Compiling("cpu").wait()

    assert [each.returncode for each in begun] == [-9]


def test_nothing_is_left_of_it_when_its_parent_dies() -> None:
    code = "import os\nfrom comicgen.cli import compiling\n"
    code += "print(compiling.Compiling('cpu')._process.pid, flush=True)\nos._exit(9)\n"
    parent = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    left, until = int(parent.stdout), time.monotonic() + 60

    while is_alive(left):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert parent.returncode == 9


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may wait for whoever inherited it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
