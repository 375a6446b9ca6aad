"""Numerics on the command line: chosen once, kept, told, and refused in words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from test_cli import Comicgen, comicgen, edit, output, story
from test_cli_graphs import CPU, GPU

from comicgen import numerics
from comicgen.calibration import Calibration
from comicgen.cli import commands, rendering, situation
from comicgen.engine import Event, GraphOptions, Measured
from comicgen.environment import Environment
from comicgen.errors import NumericsError
from comicgen.outputs import manifest_schema
from comicgen.outputs.entries import Head, Settled, encode
from comicgen.plan import Batch, GraphKey
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.sketch import Sketch
from comicgen.storyboard import Model

__all__ = ["comicgen", "story"]  # fixtures

WIDE = Size(320, 192)
FULL = replace(GPU, precision="fp32")


def fused() -> Environment:
    """The same GPU with fused numerics, as its versions are now."""
    return GPU.drawing("fused")


class Timed(Sketch):
    """Sketches, and says that a step takes so long, with the paces of its numerics and size."""

    paces: Mapping[tuple[str, Size | None], float] = {}

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def pace(self, size: Size) -> float:
        kind = self._environment.kind
        return self.paces.get((kind, size), self.paces.get((kind, None), 1.0))

    def measure(self, keys: Mapping[GraphKey, Model | None]) -> Iterator[Measured]:
        for key in keys:
            own = self.pace(key.bucket.size) * key.bucket.batch * 0.03
            eager = max(own, 0.06)
            told = self._environment.numerics, key.bucket
            yield Measured(*told, eager, own, 0.5, 0.04, key.bucket.batch << 30)

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        yield from super().draw(batch, upcoming)
        yield Measured(self._environment.numerics, batch.bucket, eager=7.0)


Opened = list[tuple[Environment, GraphOptions]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, comicgen: Comicgen, tmp_path: Path) -> Opened:
    """The environment and options of every engine that is opened, on a machine with a GPU."""
    seen: Opened = []

    def open_engine(model: Model, environment: Environment, options: GraphOptions) -> Timed:
        seen.append((environment, options))
        return Timed(environment)

    monkeypatch.setenv("COMICGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rendering, "open_engine", open_engine)
    monkeypatch.setattr(numerics, "version", lambda package: "9.9")
    stand_on(monkeypatch, GPU)
    return seen


def fail_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine opens with fused numerics any more."""
    usual = rendering.open_engine

    def open_engine(model: Model, environment: Environment, options: GraphOptions) -> Any:
        if environment.kind == "fused":
            raise NumericsError("cuda cannot draw with fused numerics (no compiler); mend that")
        return usual(model, environment, options)

    monkeypatch.setattr(rendering, "open_engine", open_engine)


def without_triton(package: str) -> str:
    if package == "triton":
        raise PackageNotFoundError(package)
    return "9.9"


def stand_on(monkeypatch: pytest.MonkeyPatch, environment: Environment) -> None:
    for module in (situation, commands):
        monkeypatch.setattr(module, "current", lambda device, precision: environment)


def set_paces(monkeypatch: pytest.MonkeyPatch, **paces: float) -> None:
    """By numerics, with `_wide` for wide pictures."""
    kinds = {name: name.removesuffix("_wide") for name in paces}
    sizes = {name: WIDE if name.endswith("_wide") else None for name in paces}
    found = {(kinds[name], sizes[name]): pace for name, pace in paces.items()}
    monkeypatch.setattr(Timed, "paces", found)


def journal(story: Path, event: str) -> list[dict[str, Any]]:
    lines = (output(story) / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def manifest(story: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output(story) / "manifest.json").read_bytes())
    Draft202012Validator(manifest_schema()).validate(found)
    return found


def calibrate_for_a_plain_size(
    comicgen: Comicgen, story: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wider pictures are quicker with plain numerics, the others with fused ones."""
    edit(story, "steps: 4", "steps: 100")
    set_paces(monkeypatch, plain=1.0, fused=0.5, fused_wide=1.5)
    comicgen("calibrate")
    opened.clear()


class TestFolder:
    def test_a_new_folder_on_a_gpu_is_fused_and_says_so_everywhere(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        assert comicgen("render").code == 0
        told = manifest(story)

        assert [line["numerics"] for line in journal(story, "head")] == ["fused"]
        assert [environment for environment, _ in opened] == [fused()]
        assert {each["environment"] for each in told["candidates"]} == {fused().label}
        assert told["runs"][0]["environment"]["numerics"] == fused().numerics

    def test_what_cannot_be_fused_is_plain(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_on(monkeypatch, CPU)
        comicgen("render")

        assert [line["numerics"] for line in journal(story, "head")] == ["plain"]
        assert [environment.numerics for environment, _ in opened] == ["plain"]

    def test_a_new_folder_is_plain_where_fused_turns_out_to_fail(
        self, comicgen: Comicgen, story: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where Triton finds no compiler; unless the author asked for it."""
        fail_fused(monkeypatch)
        asked = comicgen("render", "--numerics", "fused")
        assert asked.code == 4
        assert "cannot draw with fused numerics (no compiler)" in asked.err
        assert not output(story).exists()

        told = comicgen("render", "--json")
        why = "drawing with plain numerics, as cuda cannot draw with fused numerics (no compiler)"

        assert f"warning: {why}" in told.err
        assert told.lines[0]["event"] == "note"
        assert told.lines[0]["text"].startswith(why)
        [run] = manifest(story)["runs"]
        assert run["environment"]["numerics"] == "plain"
        assert told.lines[0]["text"] in run["notes"]

    def test_fused_numerics_are_tried_before_a_folder_has_them_though_plain_sizes_come_first(
        self, comicgen: Comicgen, story: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calibrate_for_a_plain_size(comicgen, story, opened, monkeypatch)
        assert comicgen("render", "-p", "p01").code == 0
        comicgen("render", "-p", "p01", "--redo")
        assert [environment.kind for environment, _ in opened] == ["fused", "plain", "plain"]

        rmtree(output(story))
        fail_fused(monkeypatch)
        assert comicgen("render", "-p", "p01").code == 0
        assert [line["numerics"] for line in journal(story, "head")] == ["plain"]

    def test_where_nothing_is_drawn_no_folder_begins_that_has_numerics(
        self, comicgen: Comicgen, story: Path, opened: Opened
    ) -> None:
        ended = comicgen("render", "--failed")

        assert (ended.code, opened, output(story).exists()) == (0, [], False)
        assert "nothing to do: 0 candidates kept" in ended.err

    def test_a_fused_folder_is_not_drawn_plain_where_fused_turns_out_to_fail(
        self, comicgen: Comicgen, story: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        comicgen("render", "--panel", "p01")
        fail_fused(monkeypatch)

        ended = comicgen("render")
        assert (ended.code, "no compiler" in ended.err) == (4, True)

    def test_a_folder_keeps_its_numerics(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render", "-p", "p01", "--numerics", "plain")
        comicgen("render", "--redo")

        assert [environment.numerics for environment, _ in opened] == ["plain", "plain"]
        assert "environment differs" not in comicgen("plan").err

    @pytest.mark.parametrize("command", ["render", "plan"])
    def test_others_than_a_folder_has_are_refused_before_a_model_loads(
        self, comicgen: Comicgen, opened: Opened, story: Path, command: str
    ) -> None:
        comicgen("render", "-p", "p01")
        ended = comicgen(command, "--numerics", "plain")

        assert ended.code == 2
        assert "is drawn with fused numerics, to the end" in ended.err
        assert "give --output another folder" in ended.err
        assert len(opened) == 1

    def test_fused_numerics_are_refused_with_the_reason_where_there_are_none(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_on(monkeypatch, CPU)
        ended = comicgen("render", "--numerics", "fused")

        assert ended.code == 2
        assert ended.err.endswith(
            "cannot draw with fused numerics: a CPU has none; use a GPU as --device, "
            "or leave --numerics out\n"
        )
        assert (opened, output(story).exists()) == ([], False)

    def test_a_fused_folder_can_be_looked_at_but_not_drawn_where_there_are_none(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        comicgen("render", "-p", "p01")
        stand_on(monkeypatch, CPU)

        assert "2 of 6 candidates done" in comicgen("status").err
        for command in ("plan", "render"):
            ended = comicgen(command)
            assert ended.code == 2
            assert "is drawn with: a CPU has none; use a GPU as --device, or give" in ended.err

    @pytest.mark.parametrize(
        ("device", "precision", "needs"),
        [
            (CPU, None, "use a GPU as --device"),
            (CPU, "fp32", "use a GPU as --device and take `precision: fp32` out of the storyboard"),
            (FULL, "fp32", "take `precision: fp32` out of the storyboard"),
            (GPU, None, "install Triton"),
        ],
        ids=["CPU", "CPU in fp32", "GPU in fp32", "no Triton"],
    )
    def test_the_cure_for_a_fused_folder_is_one_for_the_reason_and_the_command(
        self,
        comicgen: Comicgen,
        opened: Opened,
        story: Path,
        monkeypatch: pytest.MonkeyPatch,
        device: Environment,
        precision: str | None,
        needs: str,
    ) -> None:
        comicgen("render", "-p", "p01")
        stand_on(monkeypatch, device)
        if precision:
            edit(story, "panels:", f"precision: {precision}\npanels:")
        if device is GPU:
            monkeypatch.setattr(numerics, "version", without_triton)
        folder = "give --output another folder"

        for wish, without in (
            ("auto", folder),
            ("plain", folder),
            ("fused", f"leave --numerics out and {folder}"),
        ):
            ended = comicgen("render", "--numerics", wish)
            assert (ended.code, ended.err.endswith(f"; {needs}, or {without}\n")) == (2, True)

    def test_a_folder_with_unknown_numerics_is_another_comicgens(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render", "-p", "p01")
        path = output(story) / "journal.jsonl"
        head, rest = path.read_bytes().split(b"\n", 1)
        assert b'"fused"' in head
        changed = encode(Head("tale", "../../storyboards/tale.yaml", "odd", "9.9"))
        path.write_bytes(changed + rest)

        assert "was drawn with odd numerics" in comicgen("status").err

    def test_a_folder_with_a_size_of_unknown_numerics_is_another_comicgens(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render", "-p", "p01")
        path = output(story) / "journal.jsonl"
        settled = Settled({"width": 256, "height": 256}, "odd")  # type: ignore[arg-type]
        path.write_bytes(path.read_bytes() + encode(settled))

        ended = comicgen("plan")
        assert (ended.code, "was drawn with odd numerics" in ended.err) == (2, True)

    def test_a_folder_that_was_begun_meanwhile_with_others_is_refused(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By another process, between the look and the lock."""

        def late(model: Model, environment: Environment, options: GraphOptions) -> Timed:
            with monkeypatch.context() as patch:
                patch.setattr(rendering, "open_engine", lambda *_: Timed(environment))
                assert comicgen("render", "-p", "p01", "--numerics", "plain").code == 0
            return Timed(environment)

        monkeypatch.setattr(rendering, "open_engine", late)
        ended = comicgen("render")

        assert ended.code == 2
        assert "is drawn with plain numerics, not with fused, since another process" in ended.err


class TestRender:
    def test_graphs_that_do_not_pay_are_not_captured_and_the_manifest_says_why(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("calibrate", "--numerics", "fused")
        opened.clear()
        comicgen("render")
        [(_, options)] = opened
        [run] = manifest(story)["runs"]

        assert {str(key) for key in options.without} == {"4 x 256x256", "2 x 320x192"}
        assert run["choices"][0] == {
            "bucket": "4 x 256x256",
            "numerics": "fused",
            "graph": False,
            "eager": 0.12,
            "replayed": 0.12,
            "plain": None,
            "fused": 0.12,
        }

    @pytest.mark.parametrize(
        "options", [("--graphs", "on"), ("--precapture", "1"), ("--debug-graphs",)], ids=str
    )
    def test_graphs_that_the_author_asks_for_are_captured_whether_they_pay_or_not(
        self, options: tuple[str, ...], comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("calibrate", "--numerics", "fused")
        opened.clear()
        comicgen("render", *options)
        [(_, chosen)] = opened
        [run] = manifest(story)["runs"]

        assert chosen.without == frozenset()
        assert all(choice["graph"] for choice in run["choices"])

    def test_what_a_run_measures_is_known_to_the_next(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render")
        figures = Calibration.here(GPU, MODEL).figures(fused())

        assert {figure.eager for figure in figures.buckets.values()} == {7.0}
        assert figures.opening.keys() == {"fused"}
        assert "measured" not in (output(story) / "journal.jsonl").read_text()

    def test_a_cpu_remembers_nothing(
        self, comicgen: Comicgen, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_on(monkeypatch, CPU)
        comicgen("render")

        assert not list(tmp_path.rglob("calibration-*.json"))

    def test_a_size_that_is_quicker_so_is_drawn_plain_and_stays_so(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calibrate_for_a_plain_size(comicgen, story, opened, monkeypatch)
        assert comicgen("render", "-p", "p02", "--json").drawn == ["p02-c01", "p02-c02"]
        assert [line["size"]["width"] for line in journal(story, "settled")] == [256]
        comicgen("render")

        assert [environment.kind for environment, _ in opened] == ["fused", "fused", "plain"]
        settled = {line["size"]["width"]: line["numerics"] for line in journal(story, "settled")}
        assert settled == {256: "fused", 320: "plain"}
        labels = {each["panel"]: each["environment"] for each in manifest(story)["candidates"]}
        assert labels == {"p01": GPU.label, "p02": fused().label, "p03": fused().label}
        assert "environment differs" not in comicgen("plan").err

        set_paces(monkeypatch, plain=9.0, fused=0.5)
        comicgen("calibrate")
        opened.clear()
        comicgen("render", "--redo")
        assert [environment.kind for environment, _ in opened] == ["fused", "plain"]
        assert len(journal(story, "settled")) == 2

    def test_a_folder_without_measurements_settles_its_sizes_as_fused(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render")

        assert {line["numerics"] for line in journal(story, "settled")} == {"fused"}

    def test_a_plain_folder_settles_nothing(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        comicgen("render", "--numerics", "plain")

        assert journal(story, "settled") == []
