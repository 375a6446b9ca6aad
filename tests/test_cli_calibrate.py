"""`calibrate` measures once; `plan` then tells what a night needs, and why it is drawn so."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, get_args

import pytest
from test_cli import Comicgen, comicgen, edit, story
from test_cli_graphs import CPU, GPU
from test_cli_numerics import Opened, Timed, fused, opened, set_paces, stand_on

from comicgen import pocket
from comicgen.calibration import Calibration
from comicgen.cli import rendering, situation
from comicgen.engine import GraphOptions, Measured, Note
from comicgen.environment import Environment
from comicgen.numerics import Numerics
from comicgen.plan import GraphKey
from comicgen.pocket import MODEL
from comicgen.storyboard import Model
from comicgen.weights import read_lora, read_model

SIZES = ("256x256", "320x192")

__all__ = ["comicgen", "opened", "story"]  # fixtures


class TestCalibrate:
    def test_a_cpu_has_nothing_to_calibrate(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_on(monkeypatch, CPU)
        ended = comicgen("calibrate")

        assert ended.code == 2
        assert "a CPU has nothing to calibrate" in ended.err
        assert opened == []

    def test_every_bucket_is_measured_with_all_numerics_and_told(
        self, comicgen: Comicgen, opened: Opened
    ) -> None:
        ended = comicgen("calibrate")
        lines = ended.err.splitlines()

        assert ended.code == 0
        assert lines[0] == "measuring 10 buckets, each with plain and fused numerics"
        assert lines[1] == (
            "16 x 256x256, plain: 480 ms called, 480 ms replayed, 500 ms to capture, "
            "40.0 ms to decode a picture"
        )
        assert lines[-1].startswith("remembered in ")
        assert len(lines) == 1 + 2 * 10 + 1
        kinds = ["plain", "plain", fused().numerics, fused().numerics]
        assert [environment.numerics for environment, _ in opened] == kinds

    def test_what_only_the_first_opening_does_counts_against_no_numerics(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk is cold, and kernels are compiled."""
        usual, now = rendering.open_engine, [0.0]

        def open_engine(model: Model, environment: Environment, options: GraphOptions) -> Any:
            again = any(environment == earlier for earlier, _ in opened)
            now[0] += 2.0 if again else 60.0
            return usual(model, environment, options)

        monkeypatch.setattr(rendering, "open_engine", open_engine)
        monkeypatch.setattr(rendering, "perf_counter", lambda: now[0])
        comicgen("calibrate")

        opening = Calibration.here(GPU, MODEL).figures(GPU).opening
        assert opening == {"plain": 2.0, "fused": 2.0}

    def test_programs_get_a_line_for_each(self, comicgen: Comicgen, opened: Opened) -> None:
        ended = comicgen("calibrate", "--json", "--batch", "1", "--numerics", "plain")

        assert ended.err == ""
        assert [line["event"] for line in ended.lines] == ["measured", "measured", "calibrated"]
        assert ended.lines[0]["bucket"] == "1 x 256x256"
        assert Path(ended.lines[-1]["file"]).exists()

    def test_what_was_measured_before_an_interruption_is_remembered(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measure = Timed.measure

        def torn(self: Timed, keys: Mapping[GraphKey, Model | None]) -> Iterator[Measured]:
            yield next(measure(self, keys))
            raise KeyboardInterrupt

        monkeypatch.setattr(Timed, "measure", torn)

        assert comicgen("calibrate").code == 130
        assert len(Calibration.here(GPU, MODEL).figures(GPU).buckets) == 1

    def test_a_cache_that_cannot_be_written_is_told_of(
        self, comicgen: Comicgen, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("COMICGEN_CACHE", str(tmp_path / "file" / "below"))

        assert "not remembered, the cache folder cannot be written" in comicgen("calibrate").err

    def test_openings_are_remembered_where_nothing_else_could_be_measured(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Timed, "measure", lambda self, keys: iter(()))
        said = comicgen("calibrate").err

        assert "remembered in " in said
        assert "cannot be written" not in said
        assert Calibration.here(GPU, MODEL).figures(GPU).opening.keys() == {"plain", "fused"}

    def test_what_could_not_be_measured_is_named(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where the graph of so many lanes does not fit into memory."""
        measure = Timed.measure

        def partly(self: Timed, keys: Mapping[GraphKey, Model | None]) -> Iterator[Measured]:
            for each in measure(self, keys):
                torn = each.bucket.batch == 16
                yield replace(each, replayed=None, first_use=None) if torn else each

        monkeypatch.setattr(Timed, "measure", partly)
        last = comicgen("calibrate", "--json").lines[-1]
        said = comicgen("calibrate").err

        torn = [f"16 x {size} ({kind})" for kind in get_args(Numerics) for size in SIZES]
        assert last["missing"] == torn
        assert f"could not be measured: {', '.join(torn)}; what" in said
        assert "remembered in " in said

    def test_why_it_could_not_is_told(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Timed, "measure", lambda self, keys: iter([Note("it is too large")]))
        lines = comicgen("calibrate", "--json").lines

        assert lines[0] == {"event": "note", "text": "it is too large"}
        assert "warning: it is too large" in comicgen("calibrate").err


class TestPlan:
    def test_an_uncalibrated_gpu_says_so_with_the_cure(
        self, comicgen: Comicgen, opened: Opened
    ) -> None:
        said = comicgen("plan").err

        assert "0 waiting; uncalibrated" in said
        assert "run `comicgen calibrate STORY` once" in said
        assert "of GPU memory beside what a step takes, at most" in said

    def test_a_cpu_is_not_told_to_calibrate(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_on(monkeypatch, CPU)
        said = comicgen("plan").err

        assert "calibrate" not in said.replace("uncalibrated", "")
        assert said.splitlines()[-1] == "needs at most 1.2 MB of disk"

    def test_a_calibrated_gpu_tells_hours_memory_disk_and_choices(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_paces(monkeypatch, plain=1.0, fused=0.5)
        comicgen("calibrate")
        said = comicgen("plan").err
        planned = comicgen("plan", "--json").lines[0]

        assert "; about 1 s" in said
        assert "uncalibrated" not in said
        assert "GB of GPU memory, at most 1.2 MB of disk" in said
        [row] = [line.split() for line in said.splitlines() if line.startswith("4 x 256x256")]
        assert row[3:5] == ["fused", "no"]
        assert row[5::2] == ["60.0", "60.0", "120", "60.0"]
        assert planned["calibrated"]
        assert planned["seconds"] == pytest.approx(2 * 4 * 0.06 + 6 * 0.04, abs=0.02)
        assert planned["memory"]["bucket"] == 4 << 30
        assert planned["memory"]["weights"] > 10**7
        assert planned["numerics"] == "fused"
        assert [choice["fused"] for choice in planned["choices"]] == [0.06, 0.03]

    def test_weights_that_loras_change_are_counted_twice(
        self, comicgen: Comicgen, opened: Opened, story: Path
    ) -> None:
        """As often as LoRAs change them: their pristine copies are kept."""
        weights = [comicgen("plan", "--json").lines[-1]["memory"]["weights"]]
        for loras in ("{file: noir}", "{file: noir, weight: 0.5}"):
            edit(story, "defaults: {", f"defaults: {{loras: [{loras}], ")
            weights.append(comicgen("plan", "--json").lines[-1]["memory"]["weights"])
            edit(story, f"loras: [{loras}], ", "")
        noir = read_lora(pocket.lora("noir"), read_model(MODEL)).layers
        shapes = read_model(MODEL).layers
        changed = sum(prod(shapes[part][name]) for part, name in {each.home for each in noir})

        assert weights[1] - weights[0] == weights[2] - weights[0] == 2 * changed > 0

    def test_a_plain_vae_that_asks_for_it_is_counted_in_float32(
        self, comicgen: Comicgen, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def weights(*options: str) -> int:
            planned: int = comicgen("plan", *options, "--json").lines[0]["memory"]["weights"]
            return planned

        narrow = weights("--numerics", "plain")
        asking = replace(read_model(MODEL), force_upcast=True)
        monkeypatch.setattr(situation, "read_model", lambda folder: asking)

        assert weights("--numerics", "plain") == narrow + 2 * asking.weights["vae"].parameters
        assert weights("--numerics", "fused") == narrow

    def test_the_quicker_numerics_are_planned_for_a_new_folder(
        self, comicgen: Comicgen, opened: Opened, story: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        edit(story, "steps: 4", "steps: 100")
        set_paces(monkeypatch, plain=1.0, fused=2.5)
        comicgen("calibrate")

        assert comicgen("plan", "--json").lines[0]["numerics"] == "plain"
        assert comicgen("plan", "--numerics", "fused", "--json").lines[0]["numerics"] == "fused"
