"""Measurements of a machine are remembered between runs, and whatever is wrong with them is not."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comicgen import calibration, numerics
from comicgen.calibration import Calibration
from comicgen.engine import Measured
from comicgen.environment import Environment
from comicgen.plan import Bucket, Figure, Figures
from comicgen.sizes import Size

GPU = Environment("cuda", "a test's GPU", 0, "fp16", "2.13.0", "0.42.1", "5.24.0")
SIZE = Size(1024, 768)
ONE, EIGHT = (Bucket(lanes, SIZE, 1, 0, guided=True) for lanes in (1, 8))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMICGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "driver", lambda: "580.1")
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """As much of a model as its architecture needs."""
    return write_model(tmp_path / "model")


def write_model(folder: Path, **unet: Any) -> Path:
    for part, config in {"unet": unet, "vae": {}}.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "config.json").write_text(json.dumps(config))
    return folder


def remembered(model: Path, *told: Measured, environment: Environment = GPU) -> Figures:
    """What the next run knows after these were told."""
    now = Calibration.here(environment, model)
    for each in told:
        now.take(each)
    now.save()
    return Calibration.here(environment, model).figures(environment)


FULL = Measured("plain", EIGHT, 0.245, 0.24, 1.0, 0.05, 4 << 30)


def test_what_was_measured_is_known_to_the_next_run(cache: Path, model: Path) -> None:
    found = remembered(model, FULL)

    assert found.buckets == {("plain", EIGHT): Figure(0.245, 0.24, 1.0, 4 << 30)}
    assert found.decode == {("plain", SIZE): 0.05}


def test_nothing_is_written_before_it_is_saved_nor_where_nothing_is_new(
    cache: Path, model: Path
) -> None:
    now = Calibration.here(GPU, model)
    now.save()
    now.take(FULL)

    assert not cache.exists()
    assert now.figures(GPU).buckets.keys() == {("plain", EIGHT)}


def test_newer_measurements_take_the_place_of_older_and_others_stay(
    cache: Path, model: Path
) -> None:
    remembered(model, FULL, Measured("plain", ONE, eager=0.066))
    found = remembered(model, Measured("plain", EIGHT, eager=0.3, decode=0.04))

    assert found.buckets["plain", EIGHT] == Figure(0.3, 0.24, 1.0, 4 << 30)
    assert found.buckets["plain", ONE] == Figure(0.066)
    assert found.decode == {("plain", SIZE): 0.04}


def test_each_row_says_when_it_was_measured(cache: Path, model: Path) -> None:
    remembered(model, FULL)
    [file] = cache.glob("calibration-*.json")
    content = json.loads(file.read_text())

    assert [row["date"][:2] for row in content["rows"]] == ["20"]
    assert content["machine"]["gpu"] == "a test's GPU"
    assert content["machine"]["driver"] == "580.1"


def test_two_runs_at_once_lose_nothing_of_each_other(cache: Path, model: Path) -> None:
    one, other = Calibration.here(GPU, model), Calibration.here(GPU, model)
    one.take(FULL)
    other.take(Measured("plain", ONE, eager=0.066))
    one.save()
    other.save()

    assert Calibration.here(GPU, model).figures(GPU).buckets.keys() == {
        ("plain", ONE),
        ("plain", EIGHT),
    }


def test_what_another_run_added_meanwhile_leaves_it_saved(cache: Path, model: Path) -> None:
    one, other = Calibration.here(GPU, model), Calibration.here(GPU, model)
    for now, told in ((one, FULL), (other, replace(FULL, eager=0.3))):
        now.take(told)
        now.save()
    other.take(Measured("plain", ONE, eager=0.066))
    other.save()

    assert (one.saved, other.saved) == (True, True)


def test_what_was_measured_again_but_cannot_be_written_is_not_saved(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(model, FULL)
    [file] = cache.glob("calibration-*.json")
    file.write_text(
        re.sub('"date":"[^"]*"', '"date":"2025-01-01T00:00:00+00:00"', file.read_text())
    )
    now = Calibration.here(GPU, model)
    now.take(replace(FULL, eager=0.3))
    monkeypatch.setattr(calibration, "write_cache", lambda *_: None)
    now.save()

    assert not now.saved


def test_opening_remembers_the_longest_and_the_shortest(cache: Path, model: Path) -> None:
    for seconds in (9.0, 60.0, 4.0, 5.0):
        now = Calibration.here(GPU, model)
        now.opened("plain", seconds)
        now.save()
    [file] = cache.glob("calibration-*.json")
    [row] = json.loads(file.read_text())["rows"]

    assert (row["cold"], row["warm"]) == (60.0, 4.0)
    assert Calibration.here(GPU, model).figures(GPU).opening == {"plain": 4.0}


def test_openings_of_runs_at_once_are_joined(cache: Path, model: Path) -> None:
    one, other = (Calibration.here(GPU, model) for _ in range(2))
    one.opened("plain", 4.0)
    other.opened("plain", 9.0)
    one.save()
    other.save()

    [row] = json.loads(next(cache.glob("calibration-*.json")).read_text())["rows"]
    assert (row["cold"], row["warm"]) == (9.0, 4.0)


def test_fused_numerics_of_another_recipe_are_not_taken_for_those_of_now(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = GPU.drawing("fused").numerics
    found = remembered(model, Measured("fused-00000000", EIGHT, 0.2), Measured(now, ONE, 0.1))

    assert found.buckets == {("fused", ONE): Figure(0.1)}


OTHERS: dict[str, Callable[[Path], tuple[Environment, Path]]] = {
    "GPU": lambda model: (replace(GPU, hardware="another"), model),
    "torch": lambda model: (replace(GPU, torch="2.14.0"), model),
    "precision": lambda model: (replace(GPU, precision="bf16"), model),
    "architecture": lambda model: (GPU, write_model(model.parent / "other", layers=3)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_machine_or_architecture_has_measurements_of_its_own(
    cache: Path, model: Path, other: Callable[[Path], tuple[Environment, Path]]
) -> None:
    remembered(model, FULL)
    environment, folder = other(model)

    assert Calibration.here(environment, folder).figures(environment) == Figures()
    remembered(folder, FULL, environment=environment)
    assert len(list(cache.glob("calibration-*.json"))) == 2


@pytest.mark.parametrize("what", ["driver", "recipe"])
def test_another_driver_or_recipe_is_another_machine(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    remembered(model, FULL)
    if what == "driver":
        monkeypatch.setattr(calibration, "driver", lambda: "600.1")
    else:
        monkeypatch.setattr(calibration, "FUSED", numerics.FUSED + 1)

    assert Calibration.here(GPU, model).figures(GPU) == Figures()


def test_weights_and_the_place_of_a_model_do_not_matter(cache: Path, model: Path) -> None:
    remembered(model, FULL)
    copy = write_model(model.parent / "copy")
    (copy / "unet" / "weights.safetensors").write_text("others")

    assert Calibration.here(GPU, copy).figures(GPU).buckets


def _with(name: str, value: str, text: str) -> str:
    """The file with another value, in JSON, under this name."""
    return re.sub(rf'"{name}": ?[^,}}]+', f'"{name}": {value}', text)


DAMAGES = {
    "no JSON": lambda text: text[:-3],
    "a list": lambda text: "[]",
    "no rows": lambda text: "{}",
    "rows of text": lambda text: '{"rows": ["a"]}',
    "a negative time": lambda text: text.replace("0.245", "-1"),
    "no number": lambda text: text.replace("0.245", '"0.245"'),
    "infinity": lambda text: text.replace("0.245", "Infinity"),
    "a torn bucket": lambda text: text.replace('"batch"', '"botch"'),
    "a wrong width": lambda text: text.replace("1024", '"1024"'),
    "no date": lambda text: text.replace('"date"', '"data"'),
    "neither bucket nor opening": lambda text: text.replace('"bucket"', '"basket"'),
    **{
        f"{name} of {value[:5]}": partial(_with, name, value)
        for name in ("eager", "replayed", "first_use", "decode", "bytes")
        for value in ("1e308", "1" + "0" * 400, "-1", "NaN", "true", '"1"')
    },
    "no time at all": partial(_with, "eager", "0"),
    "half a byte": partial(_with, "bytes", "1.5"),
    "guided by a word": partial(_with, "guided", '"false"'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_counts_as_absent_and_is_replaced(
    cache: Path, model: Path, damage: Callable[[str], str]
) -> None:
    remembered(model, FULL)
    [file] = cache.glob("calibration-*.json")
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text

    assert Calibration.here(GPU, model).figures(GPU) == Figures()
    assert remembered(model, FULL).buckets


def test_a_cache_that_cannot_be_written_is_done_without(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMICGEN_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(calibration, "driver", lambda: "")
    now = Calibration.here(GPU, model)
    now.take(FULL)
    now.save()

    assert now.figures(GPU).buckets
    assert not now.saved


def test_without_a_home_nothing_is_remembered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMICGEN_CACHE")
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(calibration, "driver", lambda: "")

    assert Calibration.here(GPU, model).file is None
    assert remembered(model, FULL) == Figures()
