"""The manifest says what is there and how it came about, in the form of its schema."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sketch_run import (
    ENVIRONMENT,
    alone,
    candidates,
    draw,
    draw_until_killed,
    manifest,
    opened,
    panel,
    story,
)

from comicgen.engine import Drawn, Failed, GraphLabel, Note
from comicgen.outputs import Outputs, folder_for, manifest_schema
from comicgen.sketch import sketch

WITHIN = GraphLabel(2, "1 x 48x32, control", 1.5, 2**30, 2 * 2**30, 4, "cudnn")
OUTSIDE = GraphLabel(1, "1 x 48x32", 0.5, 2**29, 2**30, 2, "math")

CHOICE = {
    "bucket": "1 x 48x32",
    "numerics": "plain",
    "graph": True,
    "eager": 0.066,
    "replayed": 0.035,
    "plain": 0.035,
    "fused": None,
}

VALIDATOR = jsonschema.Draft202012Validator(manifest_schema())


def save(outputs: Outputs, drawn: Drawn) -> None:
    outputs.save(drawn, alone(drawn.candidate), outputs.encoding(drawn).whole())


@pytest.fixture
def mixed(tmp_path: Path) -> dict[str, Any]:
    """The manifest of a killed run and of one with pictures, notes, graphs, and a failure."""
    storyboard = story(tmp_path, panel("p10"), panel("p02", prompt="灯塔", candidates=1))
    journal = folder_for(storyboard.path) / "journal.jsonl"
    draw_until_killed(storyboard, 0, lambda: journal.exists() and b"begun" in journal.read_bytes())
    first, second, third = candidates(storyboard)
    with opened(storyboard) as outputs, outputs.run(3, [CHOICE]):
        save(outputs, Drawn(second, sketch(second), 0.5, ("decoded again",)))
        outputs.fail(Failed(first, "not a number"), alone(first))
        outputs.keep(Note("the LoRA is for another base"), alone(second), None)
        for label in (WITHIN, OUTSIDE, replace(WITHIN, replays=8)):
            outputs.keep(label, alone(second), None)
        save(outputs, Drawn(third, sketch(third), 0.25))
    return manifest(storyboard)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(manifest_schema())


def test_the_manifest_follows_its_schema(mixed: dict[str, Any]) -> None:
    VALIDATOR.validate(mixed)


@pytest.mark.parametrize("key", ["status", "file", "seed", "lane"])
def test_the_schema_refuses_a_candidate_that_lacks_a_key(mixed: dict[str, Any], key: str) -> None:
    del mixed["candidates"][0][key]

    assert not VALIDATOR.is_valid(mixed)


def test_candidates_are_sorted_by_panel_and_number(mixed: dict[str, Any]) -> None:
    names = [candidate["name"] for candidate in mixed["candidates"]]

    assert names == ["p02-c01", "p10-c01", "p10-c02"]


def test_a_finished_candidate_tells_all_that_it_was_drawn_with(mixed: dict[str, Any]) -> None:
    candidate = mixed["candidates"][2]

    assert (
        candidate["status"],
        candidate["reason"],
        candidate["file"],
    ) == ("done", None, "p10/p10-c02.png")
    assert candidate["fields"]["prompt"] == "p10, a lighthouse"
    assert candidate["fields"]["seed"] == candidate["seed"]
    assert candidate["bucket"]["size"] == {"width": 48, "height": 32}
    assert (candidate["lane"], candidate["notes"]) == (0, ["decoded again"])
    assert ENVIRONMENT.label == candidate["environment"]


def test_a_failed_candidate_tells_why(mixed: dict[str, Any]) -> None:
    candidate = mixed["candidates"][1]

    assert (
        candidate["status"],
        candidate["reason"],
        candidate["file"],
    ) == ("failed", "not a number", None)


def test_a_run_that_was_killed_is_told_from_one_that_ended(mixed: dict[str, Any]) -> None:
    killed, ended = mixed["runs"]

    assert (killed["stopped"], killed["ended"]) == ("killed", None)
    assert (ended["stopped"], ended["pictures"]) == (None, 3)
    assert ended["drawn"] == {"p10-c02": 0.5, "p02-c01": 0.25}
    assert ended["failed"] == {"p10-c01": "not a number"}
    assert ended["notes"] == ["the LoRA is for another base"]
    assert ENVIRONMENT.to_json() == ended["environment"]
    assert ended["memory"] > 10**6


def test_a_run_tells_the_last_label_of_each_graph_in_order_of_number(
    mixed: dict[str, Any],
) -> None:
    killed, ended = mixed["runs"]

    assert killed["graphs"] == []
    assert ended["graphs"] == [asdict(OUTSIDE), asdict(replace(WITHIN, replays=8))]


def test_a_run_tells_how_it_chose_to_draw_each_bucket(mixed: dict[str, Any]) -> None:
    killed, ended = mixed["runs"]

    assert {choice["graph"] for choice in killed["choices"]} == {True}
    assert ended["choices"] == [CHOICE]


@pytest.mark.parametrize("change", [{"numerics": "odd"}, {"eager": -1}, {"graph": None}])
def test_the_schema_refuses_a_choice_that_is_none(
    mixed: dict[str, Any], change: dict[str, Any]
) -> None:
    mixed["runs"][1]["choices"] = [{**CHOICE, **change}]

    assert not VALIDATOR.is_valid(mixed)


def test_the_schema_says_what_every_number_of_a_graph_counts() -> None:
    run = manifest_schema()["properties"]["runs"]["items"]["properties"]
    graph = run["graphs"]["items"]["properties"]

    choice = run["choices"]["items"]["properties"]
    assert graph.keys() == asdict(WITHIN).keys()
    assert choice.keys() == CHOICE.keys()
    assert all("description" in each for each in (*graph.values(), *choice.values()))


def test_nothing_in_candidates_differs_between_two_runs_of_the_same(tmp_path: Path) -> None:
    one, two = story(tmp_path / "one"), story(tmp_path / "two")
    draw(one)
    draw(two)

    assert manifest(one)["candidates"] == manifest(two)["candidates"]
