"""CUDA graphs on the command line: what may be asked of them, and what is told."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_cli import Comicgen, comicgen, output, story

from comicgen.cli import rendering, situation
from comicgen.engine import Event, GraphLabel, GraphOptions
from comicgen.environment import Environment
from comicgen.plan import Batch
from comicgen.sketch import Sketch

__all__ = ["comicgen", "story"]  # fixtures

VERSIONS = ("2.0", "0.3", "5.0")
GPU = Environment("cuda", "a test's GPU", 0, "fp16", *VERSIONS)
CPU = Environment("cpu", "a test's CPU", 2, "fp32", *VERSIONS)
OFF = ("--graphs", "off")


class Replaying(Sketch):
    """Sketches as if each bucket had a graph, which every batch replays once a step."""

    def __init__(self) -> None:
        self._replays: Counter[str] = Counter()

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        yield from super().draw(batch, upcoming)
        bucket = str(batch.bucket)
        self._replays[bucket] += batch.steps
        number = list(self._replays).index(bucket) + 1
        before, after = int(7.1 * 2**30), 11 * 2**30
        yield GraphLabel(number, bucket, 1.3999, before, after, self._replays[bucket], "cudnn")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, comicgen: Comicgen) -> list[GraphOptions]:
    """The options of every engine that is opened instead of a real one."""
    options: list[GraphOptions] = []

    def open_engine(model: Any, environment: Environment, wished: GraphOptions) -> Replaying:
        options.append(wished)
        return Replaying()

    monkeypatch.setattr(rendering, "open_engine", open_engine)
    return options


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, opened: list[GraphOptions]) -> list[GraphOptions]:
    """The same, on a machine that seems to have a GPU."""
    monkeypatch.setattr(situation, "current", lambda device, precision: GPU)
    return opened


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, opened: list[GraphOptions]) -> list[GraphOptions]:
    """The same, on a machine that has none."""
    monkeypatch.setattr(situation, "current", lambda device, precision: CPU)
    return opened


def candidates(story: Path) -> list[dict[str, Any]]:
    manifest = json.loads((output(story) / "manifest.json").read_text(encoding="utf-8"))
    listed: list[dict[str, Any]] = manifest["candidates"]
    return listed


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), GraphOptions()),
        (("--graphs", "auto"), GraphOptions()),
        (("--graphs", "on"), GraphOptions()),
        (OFF, GraphOptions(enabled=False)),
        (("--precapture", "2"), GraphOptions(precapture=2)),
        (("--debug-graphs",), GraphOptions(debug=True)),
        (("--precapture", "0", *OFF), GraphOptions(enabled=False)),
    ],
)
def test_what_is_asked_of_graphs_reaches_the_engine(
    comicgen: Comicgen, gpu: list[GraphOptions], words: tuple[str, ...], options: GraphOptions
) -> None:
    assert comicgen("render", *words).code == 0
    assert [options] == gpu


@pytest.mark.parametrize("words", [(), ("--graphs", "auto"), OFF])
def test_a_cpu_draws_without_graphs(
    comicgen: Comicgen, cpu: list[GraphOptions], words: tuple[str, ...]
) -> None:
    assert comicgen("render", *words).code == 0
    assert [GraphOptions(enabled=False)] == cpu


CHOICES = "choose 1, 2, 4, 8 or 16"
WITHOUT_GPU = "leave that out, or use --device cuda"
WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--graphs", "on"), f"a CPU has no CUDA graphs for --graphs on; {WITHOUT_GPU}"),
    (("--precapture", "2"), f"for --precapture 2; {WITHOUT_GPU}"),
    (("--debug-graphs",), f"for --debug-graphs; {WITHOUT_GPU}"),
    (("--precapture", "2", *OFF), "--graphs off excludes --precapture 2; leave one or the other"),
    (
        ("--debug-graphs", "--precapture", "1", *OFF),
        "--graphs off excludes --precapture 1 and --debug-graphs",
    ),
    (("--graphs", "maybe"), "'maybe' is not one of 'auto', 'on', 'off'"),
    (("--precapture", "-1"), "--precapture"),
    (("--batch", "3"), f"--batch 3: there is no such bucket; {CHOICES}"),
    (("--batch", "0"), CHOICES),
    (("--batch", "32"), CHOICES),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_cannot_be_had_is_a_sentence_before_any_model_loads(
    comicgen: Comicgen, cpu: list[GraphOptions], story: Path, words: tuple[str, ...], said: str
) -> None:
    ended = comicgen("render", *words, "--json")

    assert (ended.code, ended.lines[-1]["exit"], ended.err.count("\n")) == (2, 2, 1)
    assert said in ended.err
    assert (cpu, output(story).exists()) == ([], False)


def test_graphs_off_excludes_what_needs_them_on_a_gpu_too(
    comicgen: Comicgen, gpu: list[GraphOptions]
) -> None:
    assert comicgen("render", "--debug-graphs", *OFF).code == 2
    assert gpu == []


@pytest.mark.parametrize("lanes", ["1", "2", "4", "8", "16"])
def test_batch_is_one_of_the_buckets(comicgen: Comicgen, lanes: str) -> None:
    assert comicgen("plan", "--batch", lanes).code == 0


def test_plan_refuses_another_batch_as_render_does(comicgen: Comicgen) -> None:
    ended = comicgen("plan", "--batch", "6")

    assert (ended.code, CHOICES in ended.err) == (2, True)


def test_the_help_names_the_buckets(comicgen: Comicgen) -> None:
    words = comicgen("render", "--help").out.replace("│", " ").split()

    assert "1, 2, 4, 8, 16" in " ".join(words)


def test_plan_counts_captures_where_graphs_are(comicgen: Comicgen, gpu: list[GraphOptions]) -> None:
    said = comicgen("plan", "--batch", "4").err
    planned = comicgen("plan", "--batch", "4", "--json").lines[0]

    captures = planned["captures"]
    assert captures >= 1
    assert f"{captures} capture" in said
    assert f"{planned['padded']} padded lane" in said


def test_plan_counts_no_captures_on_a_cpu(comicgen: Comicgen, cpu: list[GraphOptions]) -> None:
    assert "batches, 0 padded lanes" in comicgen("plan", "--batch", "1").err
    assert comicgen("plan", "--batch", "1", "--json").lines[0]["captures"] == 0


def test_settings_of_graphs_redraw_nothing(
    comicgen: Comicgen, gpu: list[GraphOptions], story: Path
) -> None:
    """They may only move a candidate to another bucket and lane, which change no picture."""
    comicgen("render", *OFF)
    first = candidates(story)

    assert comicgen("render", "--graphs", "on", "--debug-graphs", "--json").drawn == []
    assert "environment differs" not in comicgen("plan").err
    comicgen("render", "--redo", "--graphs", "on", "--precapture", "1")
    assert [{**each, "bucket": {}, "lane": 0} for each in candidates(story)] == [
        {**each, "bucket": {}, "lane": 0} for each in first
    ]


def test_verbose_tells_of_each_graph_once_and_of_all_its_replays(
    comicgen: Comicgen, gpu: list[GraphOptions]
) -> None:
    lines = comicgen("render", "--batch", "1", "--verbose").err.splitlines()

    captured = [line for line in lines if line.startswith("captured")]
    assert [line.split(" in ")[0] for line in captured] == [
        "captured 1 x 256x256",
        "captured 1 x 320x192",
    ]
    assert captured[1].endswith(" in 1.4 s, memory 7.1 -> 11.0 GiB, attention by cudnn")
    table = [line.split() for line in lines[-4:-1]]
    assert table == [
        ["graph", "bucket", "replays"],
        ["1", "1", "x", "256x256", "16"],
        ["2", "1", "x", "320x192", "8"],
    ]
    assert lines[-1].startswith("drew 6 pictures")


def test_v_is_short_for_verbose(comicgen: Comicgen, gpu: list[GraphOptions]) -> None:
    assert "captured" in comicgen("render", "-v").err


def test_without_verbose_nobody_is_told_of_graphs(
    comicgen: Comicgen, gpu: list[GraphOptions]
) -> None:
    said = comicgen("render").err

    assert "drew 6 pictures" in said
    assert "captured" not in said
    assert "replays" not in said


def test_verbose_says_so_where_no_graph_is(comicgen: Comicgen) -> None:
    said = comicgen("render", "--verbose", "--device", "cpu").err

    assert said.splitlines()[-2] == "no CUDA graph was captured"
    assert said.splitlines()[-1].startswith("drew 6 pictures")


def test_programs_get_every_label_as_a_line(comicgen: Comicgen, gpu: list[GraphOptions]) -> None:
    ended = comicgen("render", "--batch", "1", "--json")

    labels = [line for line in ended.lines if line["event"] == "graph"]
    replays = [(each["number"], each["replays"]) for each in labels]
    assert replays == [(1, 4), (1, 8), (1, 12), (1, 16), (2, 4), (2, 8)]
    assert labels[-1] == {
        "event": "graph",
        "number": 2,
        "bucket": "1 x 320x192",
        "seconds": 1.4,
        "before": int(7.1 * 2**30),
        "after": 11 * 2**30,
        "replays": 8,
        "attention": "cudnn",
    }
    assert (ended.err, ended.lines[-1]["drawn"]) == ("", 6)


def test_verbose_speaks_to_people_beside_the_lines_for_programs(
    comicgen: Comicgen, gpu: list[GraphOptions]
) -> None:
    ended = comicgen("render", "--json", "--verbose")

    assert ended.err.startswith("captured")
    assert [line["event"] for line in ended.lines].count("graph") >= 1
