"""What the pocket model learns from, the readers that judge it, and the loop that trains it."""

import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from comicgen import pocket
from comicgen.weights import describe

LIMIT = 40e6
"""Bytes that all weights may have."""
SHARES = ("training", "unseen", "apart")
HEADERS = 0.3e6
"""Bytes of their files that are no parameters; a generous guess."""


@pytest.fixture(scope="module")
def scenes(scripts: SimpleNamespace) -> Any:
    """A dozen that training never sees."""
    first, size = scripts.scenes.HOLD_OUT_SEED, scripts.vocabulary.SIZES[0]
    return scripts.unseen.gathered(
        [scripts.unseen.unseen_scene("unseen", size, first + n) for n in range(12)]
    )


def test_a_scene_is_the_same_for_the_same_seed_and_another_for_another(
    scripts: SimpleNamespace,
) -> None:
    one, again, other = (scripts.scenes.compose(seed, (256, 256)) for seed in (5, 5, 6))

    assert one.picture.tobytes() == again.picture.tobytes()
    assert (one.caption, one.facts) == (again.caption, again.facts)
    assert one.picture.tobytes() != other.picture.tobytes()


def test_scenes_have_the_size_that_is_asked_for(scripts: SimpleNamespace) -> None:
    for size in scripts.vocabulary.SIZES:
        assert scripts.scenes.compose(7, size).picture.size == size
        assert scripts.person_scenes.compose_person(7, size).picture.size == size


def test_training_shows_neither_an_unseen_scene_nor_a_held_out_pair(
    scripts: SimpleNamespace,
) -> None:
    captions, sizes = scripts.captions, scripts.vocabulary.SIZES
    shown = [captions.imagine(Random(n), sizes[n % len(sizes)]) for n in range(3000)]
    shown += scripts.pool.compose_chunk(0, "scene", sizes[0], 12).facts
    unseen, apart = (
        [captions.imagine(Random(n), sizes[0], share) for n in range(500)]
        for share in ("unseen", "apart")
    )

    texts = {captions.caption(facts, Random(n)) for n, facts in enumerate(shown)}
    texts |= {captions.mirrored(text) for text in texts}
    asked = {captions.caption(facts, Random(n)) for n, facts in enumerate(unseen) for n in (0, 1)}
    assert not texts & asked
    assert len(asked) > 500

    pairs, never = (
        {(subject.noun, facts.setting) for facts in some for subject in facts.subjects}
        for some in (shown + unseen, apart)
    )
    assert not any(captions.held_out(*pair) for pair in pairs)
    assert all(captions.held_out(*pair) for pair in never)
    assert {noun for noun, _ in never} <= {noun for noun, _ in pairs}
    assert all(len(facts.subjects) == 1 for facts in apart)


def test_a_scene_is_as_unseen_as_its_mirror_image(scripts: SimpleNamespace) -> None:
    captions = scripts.captions
    fox, cat = captions.Subject("fox", "left", "blue"), captions.Subject("cat", "right", "red")
    turned = captions.Subject("cat", "left", "red"), captions.Subject("fox", "right", "blue")
    chosen = set()
    for setting in scripts.vocabulary.SETTINGS:
        for cast, other in (((fox, cat), turned), ((fox,), turned[1:])):
            one, mirror = (
                captions.Facts("comic", setting, "day", None, "medium", each)
                for each in (cast, other)
            )
            assert captions.unseen(one) == captions.unseen(mirror)
            chosen.add(captions.unseen(one))
    assert chosen == {True, False}


def test_a_mirrored_caption_swaps_left_and_right_and_mirrored_again_is_as_before(
    scripts: SimpleNamespace, scenes: Any
) -> None:
    mirrored = scripts.captions.mirrored

    assert mirrored("a fox on the left and a cat on the right") == (
        "a fox on the right and a cat on the left"
    )
    assert [mirrored(mirrored(caption)) for caption in scenes.captions] == scenes.captions


def test_every_word_of_a_caption_is_known_to_the_package(scripts: SimpleNamespace) -> None:
    captions, people, sizes = scripts.captions, scripts.person_scenes, scripts.vocabulary.SIZES
    texts = [scripts.vocabulary.DEGRADED]
    for n in range(1500):
        rng = Random(n)
        texts.append(
            captions.caption(captions.imagine(rng, sizes[n % len(sizes)], SHARES[n % 3]), rng)
        )
        texts.append(
            people.person_caption(people.imagine_person(rng, scripts.vocabulary.PERSON), rng)
        )

    with_her = frozenset([scripts.vocabulary.PERSON])
    assert set(re.findall("[a-z]+", " ".join(texts))) <= pocket.words(with_her)
    assert [*captions.words()] == sorted(pocket.words(with_her))
    assert {word for word, lora in captions.words().items() if not lora} == pocket.words()


def test_a_folder_taken_apart_and_put_together_has_the_same_bytes(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    folder, again = tmp_path / "folder", tmp_path / "again"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(Random(0).randbytes(5 << 19))
    (folder / "inner" / "b.json").write_text("{}")

    files = scripts.parts.split(folder, tmp_path / "parts", mebibytes=1)
    scripts.parts.join(tmp_path / "parts", again)

    assert len(files) == 3
    assert max(file.stat().st_size for file in files) <= 1 << 20
    for name in ("a.bin", "inner/b.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()

    files[1].unlink()
    with pytest.raises(SystemExit, match="2 parts, and not all"):
        scripts.parts.join(tmp_path / "parts", again)


def test_a_model_that_is_loaded_used_and_saved_is_as_before(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    parts = scripts.networks.Parts.load(pocket.MODEL)
    scripts.unet_stage.token_ids(parts, ["a fox in a forest"])
    parts.save(tmp_path)

    files = [file.relative_to(pocket.MODEL) for file in pocket.MODEL.rglob("*.*")]
    for file in files:
        ours, theirs = (folder / file for folder in (tmp_path, pocket.MODEL))
        if file.suffix == ".json":
            saved, shipped = (json.loads(each.read_text()) for each in (ours, theirs))
            for config in (saved, shipped):  # of the libraries, which may be others here
                config.pop("transformers_version", None)
                config.pop("_diffusers_version", None)
            assert saved == shipped, file
        else:
            assert ours.read_bytes() == theirs.read_bytes(), file
    assert len(files) >= 12


def test_a_saved_lora_tells_the_word_that_wakes_it(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    unet = scripts.networks.new_parts().unet
    scripts.adapters.add_lora(unet)
    for trigger in ("sophie", None):
        file = tmp_path / f"{trigger}.safetensors"
        scripts.adapters.save_lora(unet, file, trigger)
        told = describe(file)

        assert told["trigger_words"] == ([trigger] if trigger else [])
        assert told["supported"]


@pytest.mark.parametrize("kind", ["scene", "people"])
def test_a_chunk_survives_its_file(kind: str, scripts: SimpleNamespace, tmp_path: Path) -> None:
    chunk = scripts.pool.compose_chunk(3, kind, (320, 192), 2)
    chunk.write(tmp_path / "chunk.npz")
    read = scripts.pool.Chunk.read(tmp_path / "chunk.npz")

    assert np.array_equal(read.pictures, chunk.pictures)
    assert (read.kind, read.captions, read.facts) == (kind, chunk.captions, chunk.facts)
    assert read.size == (320, 192)


def test_a_spoilt_picture_is_less_sharp(scripts: SimpleNamespace, scenes: Any) -> None:
    spoilt = scripts.spoil.spoilt(scripts.pixels.as_values(scenes.pictures))
    sharpness = scripts.measures.sharpness

    spoilt_sharpness = sharpness(scripts.pixels.as_pixels(spoilt))
    assert (spoilt_sharpness < sharpness(scenes.pictures) / 2).all()


def test_noir_takes_most_of_the_saturation_away(scripts: SimpleNamespace, scenes: Any) -> None:
    saturation, in_noir = scripts.measures.saturation, scripts.noir.in_noir

    before, after = saturation(scenes.pictures), saturation(in_noir(scenes.pictures))
    assert after.mean() < 0.2 * before.mean()
    assert (after < before).all()


def test_noir_keeps_bright_red_and_light_and_dark(scripts: SimpleNamespace) -> None:
    colours = [(230, 30, 30), (30, 60, 200), (250, 250, 250), (10, 10, 10)]
    flat = torch.tensor(colours, dtype=torch.uint8).T[None, :, None].repeat_interleave(32, 3)
    look = scripts.noir.noir(flat.expand(-1, -1, 64, -1))
    red, blue, white, black = (
        look[0, :, 8:-8, n + 8 : n + 24].mean((1, 2)) for n in (0, 32, 64, 96)
    )

    assert red[0] > red[2] + 0.5
    assert blue.max() - blue.min() < 0.02
    assert white.min() > 0.5
    assert black.max() < -0.5


def test_lines_agree_with_themselves_and_hardly_with_those_of_another_scene(
    scripts: SimpleNamespace, scenes: Any
) -> None:
    agreement = scripts.measures.line_agreement

    assert agreement(scenes.pictures, scenes.pictures).allclose(torch.ones(12))
    assert agreement(scenes.pictures, scenes.pictures.roll(1, 0)).mean() < 0.6


def test_the_shipped_reader_reads_scenes_that_it_never_saw(
    scripts: SimpleNamespace, scenes: Any
) -> None:
    file = scripts.evaluate.WEIGHTS_FOLDER / "reader.safetensors"
    reader = scripts.reader.load(scripts.reader.Reader, file, torch.device("cpu"))
    shares = scripts.reader.score(scripts.reader.read(reader, scenes.pictures), scenes.facts)

    assert shares["setting"].value >= 0.9
    assert shares["style"].value >= 0.9
    assert shares["subject"].value >= 0.75


def test_the_shipped_reader_of_people_tells_them_from_each_other_and_from_no_one(
    scripts: SimpleNamespace, scenes: Any
) -> None:
    file = scripts.evaluate.WEIGHTS_FOLDER / "who.safetensors"
    who = scripts.reader.load(scripts.reader.Who, file, torch.device("cpu"))
    names, first = scripts.people.NAMES, scripts.scenes.HOLD_OUT_SEED
    shown = [name for name in names for _ in range(3)]
    people = scripts.unseen.gathered(
        [scripts.unseen.unseen_person(name, (256, 256), first + n) for n, name in enumerate(shown)]
    )

    seen = scripts.reader.recognised(who, people.pictures)
    right = [names[each] == name for each, name in zip(seen, shown, strict=True) if each < 3]
    assert sum(right) >= 8
    assert (scripts.reader.recognised(who, scenes.pictures) == scripts.reader.NO_ONE).sum() >= 11


def test_training_lowers_the_loss_and_leaves_the_averages_behind(scripts: SimpleNamespace) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inputs, weights = torch.randn(64, 4), torch.tensor([[1.0, -2.0, 3.0, 0.5]])
    wanted = inputs @ weights.T + 1

    def loss() -> torch.Tensor:
        return (model(inputs) - wanted).square().mean()

    before = loss().item()
    trainer = scripts.training.Trainer([model], torch.float32, averaged_over=20)
    course = scripts.training.Course(seconds=60, rate=0.05, most=300, warmup=10)
    figures = trainer.run("toy", course, trainer.step_of(loss))
    last = [p.detach().clone() for p in model.parameters()]
    trainer.finish()

    assert figures["steps"] == 300
    assert loss().item() < 0.01 * before
    for p, average, moved in zip(model.parameters(), trainer.averages, last, strict=True):
        assert torch.equal(p, average)
        assert torch.allclose(p, moved, atol=0.1)
        assert p.grad is None


def test_all_weights_together_are_as_small_as_they_must_be(scripts: SimpleNamespace) -> None:
    parts = scripts.networks.new_parts()
    networks = [*parts.networks, scripts.networks.new_controlnet(parts.unet)]
    count = sum(p.numel() for network in networks for p in network.parameters())
    scripts.adapters.add_lora(parts.unet)
    lora = sum(p.numel() for p in parts.unet.parameters() if p.requires_grad)

    assert 0 < lora < 1e6
    assert 2 * (count + 2 * lora) + HEADERS < LIMIT


def test_the_card_tells_which_floors_are_reached_and_keeps_what_is_written_by_hand(
    scripts: SimpleNamespace,
) -> None:
    card = scripts.card
    rows = {
        "vae": [{"what": "float16", "mean PSNR, dB": 28.9}],
        "attributes": [{"what": "all: drawn", "setting": 0.95, "time": None}],
        "bytes": {"all": 39_000_000},
    }
    reached = {
        floor.asked: floor.reached for floor in scripts.floors.floors(scripts.floors.Report(rows))
    }

    assert reached["VAE at least 29 dB mean PSNR"] is False
    assert reached["setting at least 95 %"] is True
    assert reached["time of day at least 95 %"] is None
    assert reached["all weights at most 40 MB"] is True
    text = f"by hand\n{card.BEGIN}\nold\n{card.END}\nby hand too\n"
    assert card.replaced(text, "new") == text.replace("\nold\n", "\n\nnew\n\n")


def test_many_pictures_at_once_are_those_that_the_pipeline_draws(scripts: SimpleNamespace) -> None:
    pipeline = scripts.drawing.load_pipeline(pocket.MODEL, torch.device("cpu"))
    pipeline.set_progress_bar_config(disable=True)
    texts, seeds = ["a fox in a forest at night", "a red car on a city street"], [3, 4]
    ours = scripts.drawing.draw(
        pipeline, texts, ["blurry", ""], (256, 192), seeds, steps=4, guidance=3.0
    )
    for n, seed in enumerate(seeds):
        theirs = pipeline(
            texts[n],
            negative_prompt=["blurry", ""][n],
            width=256,
            height=192,
            num_inference_steps=4,
            guidance_scale=3.0,
            generator=torch.Generator().manual_seed(seed),
            output_type="np",
        ).images[0]
        gap = np.abs(ours[n].permute(1, 2, 0).numpy() - 255 * theirs)
        assert gap.max() < 2


def test_a_feed_gives_each_chunk_once_and_tells_of_one_that_cannot_be_read(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    sizes, compose = scripts.vocabulary.SIZES, scripts.pool.compose_chunk
    for n in range(3):
        compose(n, "scene", sizes[n % 2], 2).write(tmp_path / f"scene-{n}.npz")
    with scripts.feed.Feed(tmp_path, "scene") as feed:
        assert sum(len(chunk.captions) for chunk in feed.first(6)) == 6
        assert list(feed.ready()) == []
        (tmp_path / "aside").write_bytes(b"no archive")
        (tmp_path / "aside").rename(tmp_path / "scene-3.npz")
        with pytest.raises(SystemExit, match="cannot be read"):
            next(iter(feed))
