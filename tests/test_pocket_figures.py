"""The figures of the model card: each is of the pictures, facts and rows that it says it is of."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from comicgen import pocket

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
MEASURED = ROOT / "docs" / "benchmarks" / "2026-11-30-pocket"
PLAIN, NEGATIVE, HALF, FULL, WORN_HALF, WORN, RULE, CODED = (28 * n for n in range(1, 9))
"""What is added to the values of composed pictures, by what was done to draw them."""


def flat(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)


def value(pictures: Tensor) -> Tensor:
    return pictures[:, 0, 0, 0].float()


@pytest.fixture
def studio(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A studio of flat pictures, whose values tell what they are of, and so does what is read."""
    sections, worn = scripts.sections, [0.0]

    def scenes(*values: int) -> Any:
        facts: list[Any] = [SimpleNamespace(of=v, subjects="ab"[: 2 - v % 2]) for v in values]
        return scripts.unseen.Scenes(flat(*values), [str(v) for v in values], facts)

    def draw(
        _: Any, texts: list[str], negatives: list[str], *__: Any, guidance: float, steering: Any
    ) -> Tensor:
        weight = {0.0: 0, 0.5: 1, 1.0: 2}
        assert guidance == 2.5
        added = PLAIN
        if any(negatives):
            assert negatives == [scripts.vocabulary.DEGRADED] * len(texts)
            assert worn[-1] == 0
            added = NEGATIVE
        elif steering:
            assert steering.controlnet == "lineart"
            added = (PLAIN, HALF, FULL)[weight[steering.weight]]
        elif worn[-1]:
            added = (PLAIN, WORN_HALF, WORN)[weight[worn[-1]]]
        return flat(*(int(text) + added for text in texts))

    def score(read: list[int], facts: list[Any]) -> dict[str, Any]:
        share = SimpleNamespace(value=(read, [each.of for each in facts]), asked=len(facts))
        return {"subject": share, "setting": share, "style": share}

    stubs = {
        "draw": draw,
        "read": lambda _, pictures: value(pictures).int().tolist(),
        "score": score,
        "through_vae": lambda _, pictures: (pictures + CODED, 0),
        "load_controlnet": lambda *_: "lineart",
        "line_art": lambda pictures: pictures[:, :1].float() / 255,
        "line_agreement": lambda drawn, wanted: value(drawn) - value(wanted),
        "in_noir": lambda pictures: pictures - PLAIN + RULE,
        **dict.fromkeys(("saturation", "chroma", "sharpness"), value),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(sections, name, stub)
    monkeypatch.setattr(sections.Studio, "sheet", lambda *_: None)
    pipeline = SimpleNamespace(
        unet=SimpleNamespace(device=CPU),
        vae=SimpleNamespace(dtype=torch.float32),
        load_lora_weights=lambda *_, **__: None,
        set_adapters=lambda _, weight: worn.append(weight),
        unload_lora_weights=lambda: worn.append(0.0),
    )
    sizes = [sections.named(size) for size in scripts.vocabulary.SIZES[1:]]
    sets = {
        "any": scenes(1, 2, 3),
        "never together": scenes(5, 7),
        "sophie": scenes(9, 11),
        **{size: scenes(13 + 2 * n, 14 + 2 * n) for n, size in enumerate(sizes)},
    }
    return sections.Studio(tmp_path, tmp_path, pipeline, None, None, sets, 2.5)


def read_of(row: dict[str, Any]) -> tuple[str, Any]:
    return row["what"], row["subject"]


def test_attributes_are_read_from_the_pictures_of_the_facts(
    studio: Any, scripts: SimpleNamespace
) -> None:
    assert [read_of(row) for row in scripts.sections.judge_attributes(studio)] == [
        ("all: composed", ([1, 2, 3], [1, 2, 3])),
        ("all: composed, coded", ([1 + CODED, 2 + CODED, 3 + CODED], [1, 2, 3])),
        ("all: drawn", ([1 + PLAIN, 2 + PLAIN, 3 + PLAIN], [1, 2, 3])),
        ("one subject: composed", ([1, 3], [1, 3])),
        ("one subject: composed, coded", ([1 + CODED, 3 + CODED], [1, 3])),
        ("one subject: drawn", ([1 + PLAIN, 3 + PLAIN], [1, 3])),
    ]
    assert [read_of(row) for row in scripts.sections.judge_pairs(studio)] == [
        ("never together: composed", ([5, 7], [5, 7])),
        ("never together: composed, coded", ([5 + CODED, 7 + CODED], [5, 7])),
        ("never together: drawn", ([5 + PLAIN, 7 + PLAIN], [5, 7])),
    ]


def test_each_size_is_judged_by_its_own_scenes(studio: Any, scripts: SimpleNamespace) -> None:
    rows = [read_of(row) for row in scripts.sections.judge_sizes(studio)]

    for n, size in enumerate(scripts.vocabulary.SIZES):
        values = [1, 2, 3] if n == 0 else [11 + 2 * n, 12 + 2 * n]
        name = scripts.sections.named(size)
        assert rows[2 * n] == (f"{name}: composed", (values, values))
        assert rows[2 * n + 1] == (f"{name}: drawn", ([v + PLAIN for v in values], values))


def test_what_is_worn_is_compared_with_what_is_not(studio: Any, scripts: SimpleNamespace) -> None:
    """The LoRA is taken off again: what is drawn next is drawn without."""
    sections, facts = scripts.sections, [1, 2, 3]
    noir = sections.judge_noir(studio)
    worn = {"weight 0": PLAIN, "weight 0.5": WORN_HALF, "weight 1": WORN}
    worn["the rule, of weight 0"] = RULE
    assert [read_of(row) for row in noir] == [
        (what, ([f + added for f in facts], facts)) for what, added in worn.items()
    ]
    for row, added in zip(noir, worn.values(), strict=True):
        fall = 100 * (1 - (2 + added) / (2 + PLAIN))
        assert row["saturation less, %"] == row["chroma less, %"] == pytest.approx(fall)

    negative = sections.judge_negative(studio)
    assert [read_of(row) for row in negative] == [
        ('""', ([f + PLAIN for f in facts], facts)),
        (f'"{scripts.vocabulary.DEGRADED}"', ([f + NEGATIVE for f in facts], facts)),
    ]
    assert negative[1]["change, %"] == pytest.approx(100 * ((2 + NEGATIVE) / (2 + PLAIN) - 1))


def test_lines_are_compared_with_those_of_the_scene(studio: Any, scripts: SimpleNamespace) -> None:
    rows = scripts.sections.judge_lineart(studio)
    assert {row["what"]: row["F1 of lines"] for row in rows} == {
        "weight 0": PLAIN,
        "weight 0.5": HALF,
        "weight 1": FULL,
        "composed, coded": CODED,
    }
    assert rows[2]["subject"] == ([1 + FULL, 2 + FULL, 3 + FULL], [1, 2, 3])


def test_a_person_is_recognised_and_nobody_where_nobody_is(
    studio: Any, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tuple tells who is seen in which picture; one of three scenes is mistaken for sophie."""
    sections, sophie = scripts.sections, scripts.sections.NAMES.index("sophie")
    shown = {9, 11, 9 + WORN, 3}
    monkeypatch.setattr(
        sections,
        "recognised",
        lambda _, pictures: torch.tensor(
            [sophie if int(v) in shown else sections.NO_ONE for v in value(pictures)]
        ),
    )
    rows = {row["what"]: row["recognised"] for row in sections.judge_people(studio)}

    assert rows == {
        "sophie: composed": 1.0,
        "sophie: weight 1": 0.5,
        "sophie: weight 0": 0.0,
        "scenes without them: composed, nobody recognised": pytest.approx(2 / 3),
    }


def report() -> dict[str, Any]:
    """Each floor is told by a figure that stands nowhere else; those beside it would miss it."""
    good = {"subject": 0.91, "subject alone": 0.92, "subject of two": 0.93, "setting": 0.96}
    good |= {"time": 0.97, "style": 0.98, "shirt colour": 0.85, "side": 0.945}
    bad = dict.fromkeys(good, 0.1)
    asked = {"asked": dict.fromkeys(good, 7)}

    def less(points: float) -> dict[str, float]:
        """The subject by so many, all else by half as many."""
        falls = {name: points if name.startswith("subject") else points / 2 for name in good}
        return {name: share - falls[name] / 100 for name, share in good.items()}

    def noir(what: str, fall: float, shares: dict[str, float]) -> dict[str, Any]:
        figures = {"saturation": 0.5, "chroma": 9.0, "chroma less, %": 1.0}
        return {"what": what, "saturation less, %": fall, **figures, **shares}

    def line(what: str, f1: float, shares: dict[str, float]) -> dict[str, Any]:
        return {"what": what, "F1 of lines": f1, **shares}

    def person(what: str, share: float) -> dict[str, Any]:
        return {"what": what, "recognised": share, "setting": 0.5}

    return {
        "settings": {
            "command": "evaluate",
            "prompts": 9,
            "first seed": 1,
            "steps": 20,
            "guidance": 2.0,
            "weights, SHA-256": "a",
            "readers, SHA-256": "b",
        },
        "environment": {
            "device": "CPU",
            "processor": "x",
            "threads": 2,
            "precision": "float32",
            "python": "3",
        },
        "bytes": {"all": 39_990_000},
        "vae": [
            {"what": what, "mean PSNR, dB": mean, **other}
            for what, mean in (("float16", 29.5), ("float32", 31.0))
            for other in [{"PSNR of the mean error, dB": 20.0, "values not finite": 0}]
        ],
        "attributes": [
            {"what": "all: composed", **bad, **asked},
            {"what": "all: composed, coded", **bad, **asked},
            {"what": "all: drawn", **good, **asked},
            {"what": "one subject: composed", **bad},
            {"what": "one subject: drawn", **less(-1)},
        ],
        "pairs": [
            {"what": "never together: composed", **bad},
            {"what": "never together: composed, coded", **bad},
            {"what": "never together: drawn", **less(8.2)},
        ],
        "sizes": [
            {"what": "256x256: composed", **bad},
            {"what": "256x256: drawn", **good},
            {"what": "320x192: composed", **less(50)},
            {"what": "320x192: drawn", **good, "subject of two": good["subject of two"] - 0.043},
            {"what": "192x320: drawn", **good, "subject of two": None},
        ],
        "lineart": [
            line("weight 0", 0.3, bad),
            line("weight 0.5", 0.4, bad),
            line("weight 1", 0.81, good),
            line("composed, coded", 0.5, bad),
        ],
        "noir": [
            noir("weight 0", 0.0, good),
            noir("weight 0.5", 50.0, bad),
            noir("weight 1", 83.0, less(7.4)),
            noir("the rule, of weight 0", 70.0, bad),
        ],
        "people": [
            person("sophie: composed", 0.2),
            person("sophie: weight 1", 0.94),
            person("sophie: weight 0", 0.1),
            {"what": "scenes without them: composed, nobody recognised", "recognised": 0.3},
        ],
        "negative": [
            {"what": '""', "variance of the Laplacian": 100.0, "change, %": 0.0, **good},
            {
                "what": '"blurry"',
                "variance of the Laplacian": 112.0,
                "change, %": 12.0,
                **less(0.6),
            },
        ],
        "speed": [
            {"what": "a GPU", "device": "cuda", "median seconds": 9.0, "threads": 1},
            {"what": "a CPU", "device": "cpu", "median seconds": 2.5, "threads": 2},
            {"what": "a slower one", "device": "cpu", "median seconds": 2.9, "threads": 2},
        ],
    }


def test_every_floor_is_judged_by_the_row_that_it_is_of(scripts: SimpleNamespace) -> None:
    floors = scripts.floors.floors(scripts.floors.Report(report()))

    assert [floor.measured for floor in floors] == [
        "29.5 dB",
        *("91.0 %", "96.0 %", "97.0 %", "98.0 %", "85.0 %", "94.5 %"),
        "subject, where there is one: -9.2 points",
        "320x192, subject, each of two: -4.3 points",
        "0.81",
        "83.0 %",
        "subject: -7.4 points",
        "94.0 %",
        "12.0 %",
        "subject: -0.6 points",
        "39.99 MB",
        "a slower one: 2.90 s",
    ]
    assert all(floor.reached for floor in floors)


def test_a_floor_is_judged_by_what_is_printed(scripts: SimpleNamespace) -> None:
    floor, signed = scripts.floors.Floor, scripts.floors.signed

    assert floor.at_least("", 94.96, 95, " %") == floor("", "95.0 %", True)
    assert floor.at_least("", 94.94, 95, " %") == floor("", "94.9 %", False)
    assert floor.at_least("", 0.794, 0.8, "") == floor("", "0.79", False)
    assert floor.no_fall("", {"a": 3.0, "b": -5.04}, 5) == floor("", "b: -5.0 points", True)
    assert floor.no_fall("", {"a": -5.06, "b": 0.0}, 5) == floor("", "a: -5.1 points", False)
    assert signed(-0.04) == signed(0.04) == "+0.0"


def test_the_card_is_what_its_report_and_the_shipped_weights_give(
    scripts: SimpleNamespace,
) -> None:
    card, evaluate, floors = scripts.card, scripts.evaluate, scripts.floors
    told = json.loads((MEASURED / "report.json").read_text())
    stages = json.loads((MEASURED / "training.json").read_text())
    shipped = (ROOT / "comicgen" / "pocket" / "README.md").read_text(encoding="utf-8")

    assert shipped == card.replaced(shipped, card.measured(floors.Report(told), stages))
    weights = evaluate.weights_in(evaluate.SHIPPED)
    assert told["settings"]["weights, SHA-256"] == evaluate.digest(weights)
    assert told["bytes"] == evaluate.sizes_of(evaluate.SHIPPED)
    at_three = json.loads((MEASURED / "report-guidance-3.json").read_text())["settings"]
    assert at_three == {
        **told["settings"],
        "guidance": 3.0,
        "command": f"{told['settings']['command']} --guidance 3 --only attributes negative",
    }
    readers = [evaluate.WEIGHTS_FOLDER / f"{name}.safetensors" for name in ("reader", "who")]
    assert told["settings"]["readers, SHA-256"] == evaluate.digest(readers)
    assert all(floor.reached for floor in floors.floors(floors.Report(told)))


def test_all_weights_are_counted_and_digested(scripts: SimpleNamespace, tmp_path: Path) -> None:
    files = ("controlnets/lineart/c.safetensors", "loras/b.safetensors", "model/a.safetensors")
    for n, name in enumerate(files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"abcdef"[: n + 1])
    (tmp_path / "model" / "config.json").write_text("{}")
    found = scripts.evaluate.weights_in(tmp_path)

    assert scripts.evaluate.sizes_of(tmp_path) == {
        **{name: n + 1 for n, name in enumerate(files)},
        "all": 6,
    }
    assert scripts.evaluate.digest(found) == hashlib.sha256(b"a" + b"ab" + b"abc").hexdigest()


def test_judged_sets_are_unseen_and_have_seeds_of_their_own(scripts: SimpleNamespace) -> None:
    unseen, captions = scripts.unseen, scripts.captions
    sizes = [unseen.named(size) for size in scripts.vocabulary.SIZES[1:]]
    kinds = ["any", "never together", *sizes, *scripts.people.NAMES]
    ranges = sorted((unseen._seeds(kind, 9999) for kind in kinds), key=lambda seeds: seeds.start)
    assert all(one.stop <= other.start for one, other in pairwise(ranges))
    assert ranges[0].start == scripts.scenes.HOLD_OUT_SEED

    sets = unseen.composed(2, ["pairs", "sizes", "people"], ["sophie"])
    assert set(sets) == {"any", "never together", *sizes, "sophie"}
    for kind in ("any", *sizes):
        assert all(captions.unseen(facts) for facts in sets[kind].facts)
    assert [unseen.named(sets[size].size) for size in sizes] == sizes
    for facts in sets["never together"].facts:
        assert captions.held_out(facts.subjects[0].noun, facts.setting)
    for facts in sets["sophie"].facts:
        assert facts.subjects[0].noun == "sophie"
        assert facts.setting in unseen.HELD_OUT_SETTINGS


def test_a_reader_is_examined_on_unseen_scenes(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, asked = scripts.reader_stage, []
    real = stage.unseen_scene
    monkeypatch.setattr(stage, "unseen_scene", lambda *of: asked.append(of) or real(*of))
    shares = stage.examined(scripts.reader.Reader().eval(), 2)

    first = scripts.scenes.HOLD_OUT_SEED
    assert asked == [("unseen", (256, 256), seed) for seed in (first, first + 1)]
    assert set(shares) <= set(scripts.reader.ATTRIBUTES)
    assert all(0 <= share <= 1 for share in shares.values())


def test_the_time_of_day_is_not_asked_where_there_is_none(scripts: SimpleNamespace) -> None:
    reader, captions, words = scripts.reader, scripts.captions, scripts.vocabulary
    settings = list(words.SETTINGS)
    timeless = [setting for setting in settings if setting in words.TIMELESS]
    cast = (captions.Subject("fox", "left", None),)
    facts = [captions.Facts("comic", s, "day", None, "medium", cast) for s in settings]
    index, places = torch.zeros(len(settings), dtype=torch.int64), torch.zeros(len(settings), 3)
    reading = reader.Reading(index, index, index, places.long(), places, places, index)

    assert 0 < len(timeless) < len(settings)
    assert reader.score(reading, facts)["time"].asked == len(settings) - len(timeless)


def test_a_picture_goes_through_the_vae_by_the_mode_of_its_latents(
    scripts: SimpleNamespace,
) -> None:
    pipeline = scripts.drawing.load_pipeline(pocket.MODEL, CPU)
    scene = scripts.scenes.compose(5, (256, 256))
    picture = scripts.unseen.gathered([scene]).pictures
    once, again = (scripts.drawing.through_vae(pipeline.vae, picture) for _ in range(2))

    assert torch.equal(once[0], again[0])
    assert once[1] == 0
    error = scripts.measures.squared_error(once[0], picture)
    assert scripts.measures.psnr(error).item() > 29


def test_lines_two_pixels_apart_agree_and_eight_do_not(scripts: SimpleNamespace) -> None:
    def edge(at: int) -> Tensor:
        picture = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
        picture[:, :, :, at:] = 255
        return picture

    agreement = scripts.measures.line_agreement
    assert agreement(edge(30), edge(32)).item() == pytest.approx(1)
    assert agreement(edge(30), edge(38)).item() < 0.1


@pytest.mark.parametrize("error", [FileNotFoundError(2, "no such", "x.json"), KeyError("vae")])
def test_a_script_that_cannot_go_on_says_why_and_fails(
    error: Exception, scripts: SimpleNamespace
) -> None:
    with pytest.raises(SystemExit) as ended, scripts.plainly.plainly(KeyError):
        raise error
    assert isinstance(ended.value.code, str)
    assert str(error.args[-1]) in ended.value.code
    with pytest.raises(ZeroDivisionError), scripts.plainly.plainly(KeyError):
        raise ZeroDivisionError
