"""What each stage of the pocket model's training learns from, and at which rate."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from comicgen import pocket

CPU = torch.device("cpu")


def test_training_shows_a_person_in_no_setting_that_is_held_out(scripts: SimpleNamespace) -> None:
    shown = {scripts.person_scenes.imagine_person(Random(n), "sophie").setting for n in range(500)}

    assert len(shown) > 8
    assert not shown & set(scripts.person_scenes.HELD_OUT_SETTINGS)


def test_a_mirrored_scene_is_told_of_as_mirrored(scripts: SimpleNamespace) -> None:
    """Where the UNet learns, and where the adapters do."""
    parts = scripts.networks.Parts.load(pocket.MODEL)
    chunk = scripts.pool.compose_chunk(7, "scene", scripts.vocabulary.SIZES[0], 12)
    sided = [n for n, text in enumerate(chunk.captions) if "left" in text or "right" in text]
    chunk = chunk.chosen(sided[:2])
    texts = [*chunk.captions, *map(scripts.captions.mirrored, chunk.captions)]
    assert len(set(texts)) == 4
    ids = scripts.unet_stage.token_ids(parts, texts)

    library = scripts.unet_stage.Library(parts, CPU, tiny=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts.unet_stage, "SPOILT_SHARE", 0.0)
        library.take(chunk)
    kept = library.entries[chunk.size]
    with torch.no_grad():
        prompts, pooled = scripts.unet_stage.text_states(parts, ids)
    prepared = scripts.adapters.prepare(parts, [chunk])[chunk.size]

    for told, wanted in zip(kept.ids, ids, strict=True):
        assert torch.equal(told[:4].long(), wanted)
    assert prepared.prompts.allclose(prompts, atol=1e-4)
    assert prepared.pooled.allclose(pooled, atol=1e-4)
    assert torch.equal(prepared.pictures[2:], prepared.pictures[:2].flip(-1))


def test_a_reader_s_mirrored_scene_has_its_sides_exchanged(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees the mirrored cast is right; one that sees the cast before is wrong."""
    stage, reader = scripts.reader_stage, scripts.reader
    monkeypatch.setattr(stage, "NOIR_SHARE", 0.0)
    monkeypatch.setattr(stage, "varied", lambda x: (x, torch.ones(len(x), dtype=torch.bool)))
    labels = torch.tensor([[0, 0, 0, 5, reader.NOBODY, 9, 2, reader.UNSHIRTED, 3]])
    counts = (len(scripts.vocabulary.STYLES), len(scripts.vocabulary.SETTINGS))

    def sure(classes: int, *choices: int) -> Tensor:
        return 50 * torch.nn.functional.one_hot(torch.tensor([choices]), classes).float()

    def loss(nouns: tuple[int, ...], colours: tuple[int, ...]) -> float:
        seen = reader.Logits(
            sure(counts[0], 0)[:, 0],
            sure(counts[1], 0)[:, 0],
            sure(len(scripts.vocabulary.TIMES), 0)[:, 0],
            sure(reader.NOBODY + 1, *nouns),
            sure(reader.UNSHIRTED + 1, *colours),
        )
        return float(stage.scene_loss(lambda _: seen, torch.zeros(1, 3, 8, 8), labels.clone()))

    before, turned = (5, reader.NOBODY, 9), (9, reader.NOBODY, 5)
    assert loss(turned, (3, reader.UNSHIRTED, 2)) < 1e-3
    assert loss(before, (3, reader.UNSHIRTED, 2)) > 10
    assert loss(turned, (2, reader.UNSHIRTED, 3)) > 10


def test_the_noise_of_diffusion_is_the_scheduler_s_and_what_is_to_be_found(
    scripts: SimpleNamespace,
) -> None:
    scheduler = scripts.networks.new_parts().scheduler
    diffusion = scripts.training.Diffusion.of(scheduler.alphas_cumprod, CPU)
    latents = torch.randn(64, 4, 8, 8, generator=torch.Generator().manual_seed(1))

    def known(noisy: Tensor, steps: Tensor) -> Tensor:
        signal = scheduler.alphas_cumprod[steps].view(-1, 1, 1, 1)
        return (noisy - signal.sqrt() * latents) / (1 - signal).sqrt()

    assert diffusion.loss(latents, known) < 1e-6
    assert diffusion.loss(latents, lambda noisy, _: noisy) > 0.05


def test_the_learning_rate_rises_and_then_falls_to_nothing(scripts: SimpleNamespace) -> None:
    course = scripts.training.Course(60, 1e-3, warmup=10)

    assert course.rate_at(0, 0.0) == pytest.approx(1e-4)
    assert course.rate_at(10, 0.0) == pytest.approx(1e-3)
    assert course.rate_at(500, 0.5) == pytest.approx(5e-4)
    assert course.rate_at(999, 1.0) == pytest.approx(0, abs=1e-9)


def test_a_unet_that_knows_its_vae_learns_at_the_lower_rate(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The training is stood in for; a quick run leaves no figures, and so no mark on the next."""
    train, rates = scripts.train, []

    def train_unet(*asked: Any) -> dict[str, int]:
        rates.append(asked[-1])
        return {"steps": len(rates)}

    def run(stage: str, quick: bool = False) -> None:
        train.run(stage, tmp_path, SimpleNamespace(seconds=1, quick=quick, first=0))

    monkeypatch.setattr(train, "train_vae", lambda *_: {"steps": 0})
    monkeypatch.setattr(train, "train_unet", train_unet)
    for stage, quick in [("vae", True), ("unet", True), ("vae", False), ("unet", False)]:
        run(stage, quick)
    assert rates == [train.RATE, train.RATE]

    run("unet")
    run("vae")
    run("unet")
    assert train.RATE_AGAIN < train.RATE
    assert rates[2:] == [train.RATE_AGAIN, train.RATE]
    kept = json.loads((tmp_path / "training.json").read_text())
    assert [(each["stage"], each["steps"]) for each in kept] == [
        *[("vae", 0), ("unet", 2), ("unet", 3), ("vae", 0), ("unet", 4)]
    ]


def test_a_noir_picture_teaches_nothing_of_colours_and_light(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, reader = scripts.reader_stage, scripts.reader
    monkeypatch.setattr(stage, "NOIR_SHARE", 1.0)
    words = scripts.vocabulary
    sizes = [(1, len(table)) for table in (words.STYLES, words.SETTINGS, words.TIMES)]
    sizes += [(1, 3, reader.NOBODY + 1), (1, 3, reader.UNSHIRTED + 1)]
    logits = [torch.zeros(size, requires_grad=True) for size in sizes]
    labels = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]])

    stage.scene_loss(lambda _: reader.Logits(*logits), torch.zeros(1, 3, 32, 32), labels).backward()
    style, setting, time, nouns, colours = (bool(each.grad.any()) for each in logits)  # type: ignore[union-attr]
    assert (style, setting, time, nouns, colours) == (False, True, False, True, False)


def test_who_is_nobody_counts_only_where_somebody_could_be(scripts: SimpleNamespace) -> None:
    stage, captions = scripts.reader_stage, scripts.captions
    shown = scripts.person_scenes.SHOWN_SETTINGS[0]
    elsewhere = next(s for s in scripts.vocabulary.SETTINGS if s not in stage.SHOWN_SETTINGS)

    def facts(noun: str, setting: str) -> Any:
        cast = (captions.Subject(noun, "left", None),)
        return captions.Facts("comic", setting, "day", None, "medium", cast)

    chunk = SimpleNamespace(facts=[facts("fox", shown), facts("fox", elsewhere)])
    chunk.facts += [facts("sophie", shown), facts("sophie", elsewhere)]
    sophie = scripts.people.NAMES.index("sophie")
    assert stage.who_labels(chunk)[:, 0].tolist() == [
        *(scripts.reader.NO_ONE, stage.UNASKED, sophie, sophie)
    ]


def test_line_art_is_learnt_under_the_prompt_of_its_scene(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters, seen = scripts.adapters, []

    class Task:
        batch = 16

        def __init__(self, *_: Any) -> None:
            pass

        def text(self, scenes: Any, index: Tensor, empty: float) -> tuple[Tensor, Tensor]:
            assert empty == adapters.EMPTY_SHARE
            return scenes.prompts[index], scenes.pooled[index]

        def loss(self, latents: Tensor, text: tuple[Tensor, Tensor], steer: Any) -> None:
            steer(latents, latents, text[0], {})
            seen.append((latents, *text))

    def controlnet(_: Any, __: Any, ___: Any, maps: Tensor, **____: Any) -> tuple[list, None]:
        seen.append(maps)
        return [], None

    monkeypatch.setattr(adapters, "Adapting", Task)
    monkeypatch.setattr(adapters, "steepness", lambda pictures: pictures[:, :1].float())
    monkeypatch.setattr(adapters, "as_if_drawn", lambda slopes: slopes)
    numbers = torch.arange(64.0).view(64, 1, 1, 1)
    scenes = adapters.Scenes(
        numbers.expand(64, 3, 8, 8).to(torch.uint8),
        numbers.expand(64, 4, 1, 1),
        numbers.view(64, 1, 1),
        numbers.view(64, 1),
    )
    adapters.lineart_losses(None, controlnet, {(8, 8): scenes}, False)[(8, 8)]()

    maps, (latents, prompts, pooled) = seen
    which = latents[:, 0, 0, 0]
    assert len(which.unique()) > 4
    for other in (prompts.flatten(), pooled.flatten(), maps[:, 0, 0, 0]):
        assert torch.equal(which, other)


def test_a_person_is_learnt_beside_others(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever is not called by her name must not come to look like her."""
    adapters, learnt = scripts.adapters, {}
    size = (256, 256)

    def chunk(kind: str, noun: str, count: int) -> Any:
        cast = (scripts.captions.Subject(noun, "left", None),)
        facts = scripts.captions.Facts("comic", "forest", "day", None, "medium", cast)
        pictures = torch.zeros(count, 256, 256, 3, dtype=torch.uint8).numpy()
        return scripts.pool.Chunk(kind, pictures, [noun] * count, [facts] * count)

    class Feed:
        def __init__(self, _: Path, kind: str) -> None:
            nouns = ["fox"] if kind == "scene" else ["dee", "sophie"]
            self.chunks = [chunk(kind, noun, 64) for _ in range(20) for noun in nouns]

        def __enter__(self) -> list:
            return self.chunks

        def __exit__(self, *_: object) -> None:
            pass

    def prepare(_: Any, chunks: list) -> dict:
        names = [caption for each in chunks for caption in each.captions]
        return {size: SimpleNamespace(names=names, pictures=None, latents=None)}

    def train_lora(
        _: Any, scenes: dict, __: Any, ___: Any, file: Path, trigger: str | None = None
    ) -> dict:
        learnt[file.stem] = scenes[size].names
        assert trigger == (None if file.stem == "noir" else file.stem)
        return {}

    parts = SimpleNamespace(to=lambda _: None, vae=SimpleNamespace(float=lambda: None))
    for name, stub in {
        "Feed": Feed,
        "prepare": prepare,
        "train_lora": train_lora,
        "SIZES": [size],
        "train_lineart": lambda *_: {},
        "latents_of": lambda *_: None,
        "device_and_dtype": lambda: (CPU, torch.float32),
    }.items():
        monkeypatch.setattr(adapters, name, stub)
    adapters.train_adapters(parts, tmp_path, tmp_path, 1.0)

    assert set(learnt["noir"]) == {"fox"}
    assert set(learnt["sophie"]) == {"fox", "sophie"}
    others = learnt["sophie"].count("fox") / len(learnt["sophie"])
    assert others == pytest.approx(adapters.OTHERS, abs=0.05)


def test_the_word_of_a_lora_changes_none_of_its_weights(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    unet = scripts.networks.new_parts().unet
    scripts.adapters.add_lora(unet)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in unet.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    for trigger in ("sophie", None):
        scripts.adapters.save_lora(unet, tmp_path / f"{trigger}.safetensors", trigger)
    named, plain = (load_file(tmp_path / f"{name}.safetensors") for name in ("sophie", "None"))

    assert named.keys() == plain.keys()
    assert all(torch.equal(named[key], plain[key]) for key in plain)
    assert min(weight.abs().max() for weight in plain.values()) > 0
