"""An engine draws through recordings what it draws without them, whatever comes between."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from drawings import (
    PROMPTS,
    batch,
    candidate,
    control,
    difference,
    model_at,
    shot,
    write_controlnet,
    write_map,
)
from lora_files import Recipe, lora_at, write_peft
from recordings import Gpu
from torch import Tensor

from comicgen.diffusion.decode import Decoded, Decoding
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.engine import DiffusionEngine
from comicgen.diffusion.graph_cache import WARM_UPS
from comicgen.diffusion.models import Components
from comicgen.diffusion.prepared import Named
from comicgen.diffusion.sampling import Sampling
from comicgen.engine import Drawn, Event, Failed, GraphLabel, GraphOptions, Measured, Note
from comicgen.environment import current
from comicgen.plan import Batch, GraphKey
from comicgen.pocket import MODEL
from comicgen.sizes import Size
from comicgen.storyboard import Model, Panel

TINY, LOW = Size(64, 64), Size(96, 64)


def fresh(options: GraphOptions = GraphOptions()) -> DiffusionEngine:  # noqa: B008 - frozen
    """An engine with networks of its own."""
    return DiffusionEngine.open(model_at(MODEL), current("cpu", None), options)


def recording(gpu: Gpu, options: GraphOptions = GraphOptions()) -> DiffusionEngine:  # noqa: B008
    """An engine on the processor whose cache believes that it has a GPU."""
    engine = fresh(options)
    engine._painter.graphs = gpu.cache(options.debug)
    return engine


def hurried(gpu: Gpu, patch: pytest.MonkeyPatch) -> DiffusionEngine:
    """One that begins with the next batch as it does on a GPU, once that is read."""
    engine = recording(gpu)
    patch.setattr(engine._denoising, "_ahead", 2)
    has = engine._denoising.reading.has

    def has_at_last(following: Batch) -> bool:
        wait([engine._denoising.reading._ahead.read] if engine._denoising.reading._ahead else [])
        return has(following)

    patch.setattr(engine._denoising.reading, "has", has_at_last)
    return engine


@pytest.fixture(scope="module")
def eager() -> DiffusionEngine:
    """Draws without recordings."""
    return fresh()


def quick(**changes: Any) -> Panel:
    return shot(**{"size": TINY, "steps": 3, **changes})


@pytest.fixture
def batches(pocket: Components, controlnet: Model, tmp_path: Path) -> Sequence[Batch]:
    """Padded lanes, three sizes of batch, two LoRA sets, two ControlNets and a failing image."""
    one, two = (
        lora_at(write_peft(tmp_path / f"{seed}.safetensors", pocket.folder, Recipe(seed=seed)))
        for seed in (1, 2)
    )
    other = write_controlnet(tmp_path / "other", pocket, strength=0.4)
    files = [write_map(tmp_path / f"{shift}.png", TINY, shift) for shift in (0, 30)]
    near, far = (
        control(controlnet, file, weight) for file, weight in zip(files, (0.7, 0.3), strict=True)
    )
    gone, second = control(controlnet, tmp_path / "gone.png"), control(other, files[1])
    whole = replace(near, start=0.0, end=1.0)
    plain, bent = quick(), quick(prompt=PROMPTS[1], guidance=3.0, negative=PROMPTS[3])
    return [
        batch(candidate(plain, 1), candidate(bent, 2)),
        batch(candidate(replace(plain, loras=(one,)), 1), None),
        batch(*(candidate(replace(plain, loras=(two,), control=each)) for each in (near, far))),
        batch(None, candidate(replace(bent, loras=(one,), control=near))),
        batch(candidate(replace(plain, control=gone)), candidate(replace(plain, control=far))),
        batch(candidate(replace(plain, control=second, steps=4)), None),
        batch(candidate(replace(plain, control=whole, sampler="euler a"))),
        batch(candidate(quick(guidance=1.0, sampler="unipc")), None),
        batch(candidate(replace(bent, size=LOW, loras=(two,)))),
        batch(candidate(plain, 1), candidate(bent, 2)),
    ]


def drawn(engine: DiffusionEngine, batches: Sequence[Batch]) -> list[list[Event]]:
    return [list(engine.draw(own, batches[at:])) for at, own in enumerate(batches, start=1)]


def pictures(events: Iterable[Event]) -> Iterator[Drawn]:
    return (event for event in events if isinstance(event, Drawn))


def assert_same_bits(one: Sequence[Event], other: Sequence[Event]) -> None:
    """The same candidates were drawn, with the same bits, and the same ones failed."""
    for mine, its in zip(pictures(one), pictures(other), strict=True):
        assert mine.candidate == its.candidate
        assert difference(mine.image, its.image).largest == 0
    failed = [[event for event in events if isinstance(event, Failed)] for events in (one, other)]
    assert failed[0] == failed[1]


def calls(batches: Sequence[Batch]) -> Counter[str]:
    """How often each bucket's graph could be replayed."""
    counted: Counter[str] = Counter()
    for own in batches:
        for number in range(own.steps):
            closed = own.control is not None and not own.control.is_open(number, own.steps)
            counted[str(own.keys[closed])] += 1
    return counted


def replays(events: Sequence[Sequence[Event]]) -> dict[str, int]:
    """By bucket, as told last; nothing was given up."""
    assert not [event for own in events for event in own if isinstance(event, Note)]
    labels = [event for own in events for event in own if isinstance(event, GraphLabel)]
    return {label.bucket: label.replays for label in labels}


def test_recordings_draw_what_an_eager_engine_draws(
    gpu: Gpu, eager: DiffusionEngine, batches: Sequence[Batch]
) -> None:
    """Half of them twice, so that every bucket is replayed; the largest one is captured ahead."""
    own = [*batches, *batches[:4:-1]]
    events = drawn(recording(gpu), own)
    expected = drawn(eager, batches)
    for one, other in zip(events, [*expected, *expected[:4:-1]], strict=True):
        assert_same_bits(one, other)

    ahead = str(batches[2].keys[0])
    assert replays(events) == {
        key: count - WARM_UPS * (key != ahead) for key, count in calls(own).items()
    }
    assert gpu.captures == len(calls(own))


@pytest.mark.parametrize(("start", "end", "steps"), [(0.3, 0.7, 12), (0.0, 0.5, 8), (0.5, 1.0, 8)])
def test_a_capture_within_a_batch_changes_no_picture(
    start: float,
    end: float,
    steps: int,
    gpu: Gpu,
    eager: DiffusionEngine,
    controlnet: Model,
    tmp_path: Path,
) -> None:
    """Outside a ControlNet's window, inside and outside again, each at least four times."""
    hint = replace(control(controlnet, write_map(tmp_path / "map.png", TINY)), start=start, end=end)
    own = [batch(candidate(quick(steps=steps, control=hint)))]
    assert min(calls(own).values()) > WARM_UPS
    engine = recording(gpu)
    engine._started = True  # nothing is captured ahead
    events = drawn(engine, own)

    assert_same_bits(events[0], drawn(eager, own)[0])
    assert replays(events) == {key: count - WARM_UPS for key, count in calls(own).items()}


def test_batches_with_different_controlnets_and_none_share_what_needs_none(
    gpu: Gpu, batches: Sequence[Batch]
) -> None:
    """Steps outside a window replay the graph of batches without a ControlNet."""
    plain, one, other = batches[-1], batches[2], batches[5]
    own = [plain, one, plain, other, one, other]
    drawn(recording(gpu), own)

    assert gpu.captures == len(calls(own)) == 3


def test_debugging_finds_nothing_wrong_with_recordings(gpu: Gpu, batches: Sequence[Batch]) -> None:
    own = [*batches[1:3]] * 2
    events = drawn(recording(gpu, GraphOptions(debug=True)), own)

    assert replays(events).keys() == calls(own).keys()


def test_room_is_spared_for_what_decoding_took(gpu: Gpu) -> None:
    engine, own = recording(gpu), batch(candidate(quick()))
    memory: Any = gpu
    engine._memory, gpu.call = memory, 123
    list(engine.draw(own, [own]))

    capturer = engine._painter.graphs._capturer
    assert capturer is not None
    assert capturer.spare == 123


def test_the_largest_graph_of_the_run_is_captured_first(gpu: Gpu) -> None:
    engine = recording(gpu)
    small, large = batch(candidate(quick())), batch(candidate(quick(size=LOW)), None)
    list(engine.draw(small, [large]))

    assert engine._painter.graphs.keys == (*large.keys, *small.keys)


def test_the_commonest_graphs_are_captured_ahead_if_that_is_asked(gpu: Gpu) -> None:
    engine = recording(gpu, GraphOptions(precapture=2))
    sizes = (TINY, LOW, LOW, Size(64, 96), Size(128, 128))
    own = [batch(candidate(quick(size=size))) for size in sizes]
    list(engine.draw(own[0], own[1:]))

    assert engine._painter.graphs.keys == (*own[4].keys, *own[1].keys, *own[0].keys)


def test_a_replay_that_fails_within_a_batch_changes_no_picture(gpu: Gpu) -> None:
    panels = [candidate(quick(prompt=prompt)) for prompt in PROMPTS[:2]]
    own = [batch(*panels), batch(*panels)]
    engine = recording(gpu)
    [first] = drawn(engine, own[:1])
    gpu.replay_errors = [None, RuntimeError("launch failed")]
    second, third = drawn(engine, own)

    for events in (second, third):
        assert_same_bits(events, first)
    assert [event.text for event in (*second, *third) if isinstance(event, Note)] == [
        "2 x 64x64: drawn without a graph, it cannot be replayed (launch failed)"
    ]


def test_a_replay_that_runs_out_of_memory_is_drawn_again_without_a_word(gpu: Gpu) -> None:
    """With a graph anew: memory was short for a moment, and the picture has all its steps."""
    own = batch(candidate(quick()))
    engine = recording(gpu)
    [expected, _] = drawn(engine, [own, own])
    gpu.replay_errors = [None, torch.OutOfMemoryError("too much")]
    events = drawn(engine, [own])

    assert_same_bits(events[0], expected)
    assert replays(events)["1 x 64x64"] > 0
    assert gpu.captures == 2


def out_of_memory(*_: object) -> NoReturn:
    raise torch.OutOfMemoryError("too much")


def test_where_memory_runs_out_graphs_are_released_and_the_batch_is_tried_again(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, own = recording(gpu), batch(candidate(quick()))
    [expected, _] = drawn(engine, [own, own])
    with monkeypatch.context() as short:
        clear = engine._painter.graphs.clear

        def enough() -> None:
            clear()
            short.undo()

        short.setattr(engine._denoising._loras, "set", out_of_memory)
        short.setattr(engine._painter.graphs, "clear", enough)
        [events] = drawn(engine, [own])

    assert_same_bits(events, expected)
    assert gpu.captures == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("too much"), RuntimeError("no kernel")])
def test_what_is_loaded_ahead_and_fails_costs_no_other_batch(
    error: Exception, gpu: Gpu, controlnet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ControlNet that does not fit fails the batches that need it."""

    def fail(_: object) -> NoReturn:
        raise error

    hint = control(controlnet, write_map(tmp_path / "map.png", TINY))
    own = [batch(candidate(quick())), batch(candidate(quick(control=hint)))]
    engine = recording(gpu)
    monkeypatch.setattr(engine._painter._controlnets, "get", fail)
    first, second = drawn(engine, own)

    assert [type(event) for event in second] == [Failed]
    assert len(list(pictures(first))) == 1


def test_an_engine_without_graphs_loads_nothing_ahead(
    controlnet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = control(controlnet, write_map(tmp_path / "map.png", TINY))
    engine, asked = fresh(), list[Model]()
    monkeypatch.setattr(engine._painter._controlnets, "get", asked.append)
    list(engine.draw(batch(candidate(quick())), [batch(candidate(quick(control=hint)))]))

    assert asked == []


def test_the_next_batch_is_begun_before_pictures_are_taken_and_changes_none(
    gpu: Gpu, eager: DiffusionEngine, batches: Sequence[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its LoRAs are in the weights then, and its graph has been replayed."""
    engine = hurried(gpu, monkeypatch)
    drawn(engine, [*batches, *batches])  # until every bucket is captured
    for at, own in enumerate(batches, start=1):
        for _ in pictures(engine.draw(own, batches[at:])):
            assert [engine._denoising._next and engine._denoising._next.batch] == (
                batches[at : at + 1] or [None]
            )

    for mine, its in zip(drawn(engine, batches), drawn(eager, batches), strict=True):
        assert_same_bits(mine, its)


def test_a_batch_that_comes_instead_of_the_begun_one_is_drawn_as_ever(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is that one later."""
    engine = hurried(gpu, monkeypatch)
    own = [batch(candidate(quick(prompt=prompt))) for prompt in PROMPTS[:3]]
    expected = drawn(engine, own)
    list(engine.draw(own[0], own[1:]))
    assert engine._denoising._next
    assert engine._denoising._next.batch is own[1]

    assert_same_bits(list(engine.draw(own[2], [])), expected[2])
    assert_same_bits(list(engine.draw(own[1], [])), expected[1])


def test_what_was_begun_is_begun_again_where_a_picture_needs_the_memory_of_graphs(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough of its steps are left for another graph to be captured."""
    engine = hurried(gpu, monkeypatch)
    own = [batch(candidate(quick(prompt=prompt, steps=9))) for prompt in PROMPTS[:2]]
    expected = drawn(engine, own)
    with monkeypatch.context() as short:
        finish = engine._decoder.finish

        def once(decoding: Decoding) -> Decoded:
            if engine._painter.graphs.keys:
                raise torch.OutOfMemoryError("too much")
            return finish(decoding)

        short.setattr(engine._decoder, "finish", once)
        events = drawn(engine, own)

    for mine, its in zip(events, expected, strict=True):
        assert_same_bits(mine, its)


def test_a_batch_that_cannot_begin_ahead_costs_no_other(
    gpu: Gpu, pocket: Components, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_peft(tmp_path / "lora.safetensors", pocket.folder, Recipe(seed=1))
    lora, plain = lora_at(file), quick()
    own = [batch(candidate(plain, 1)), batch(candidate(replace(plain, loras=(lora,)), 2))]
    engine = hurried(gpu, monkeypatch)
    expected = drawn(engine, own)
    file.write_bytes(b"changed")
    first, second = drawn(engine, own)

    assert_same_bits(first, expected[0])
    assert [type(event) for event in second] == [Failed]


def test_pictures_do_not_wait_for_the_next_batch_to_be_read(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = hurried(gpu, monkeypatch)
    own = [batch(candidate(quick(prompt=prompt))) for prompt in PROMPTS[:2]]
    drawn(engine, own)
    monkeypatch.setattr(engine._denoising.reading, "has", lambda _: False)
    list(engine.draw(own[0], own[1:]))

    assert engine._denoising._next is None


def test_a_few_steps_are_taken_ahead_once_the_device_has_all_pictures_of_this_batch(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = hurried(gpu, monkeypatch)
    own = [batch(candidate(quick(prompt=prompt)), None) for prompt in PROMPTS[:2]]
    drawn(engine, own)
    done = list[Any]()
    take, decode = Sampling.take, engine._decoder.begin

    def taking(sampling: Sampling, steps: int | None = None) -> torch.Tensor:
        done.append(steps)
        return take(sampling, steps)

    def decoding(latents: torch.Tensor) -> Decoding:
        done.append("decode")
        return decode(latents)

    monkeypatch.setattr(Sampling, "take", taking)
    monkeypatch.setattr(engine._decoder, "begin", decoding)
    drawn(engine, own)

    assert done == [None, "decode", 2, None, "decode"]


def test_nothing_is_begun_ahead_that_must_be_captured_or_loaded_first(
    gpu: Gpu, controlnet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = control(controlnet, write_map(tmp_path / "map.png", TINY))
    one, other = batch(candidate(quick())), batch(candidate(quick(size=LOW)))
    loading = batch(candidate(quick(control=hint)))
    engine = hurried(gpu, monkeypatch)
    engine._painter.graphs._refused.update(loading.keys)
    drawn(engine, [one, one])
    for following in (other, loading):
        list(engine.draw(one, [following]))
        assert engine._denoising._next is None

    list(engine.draw(loading, []))
    list(engine.draw(one, [loading]))
    assert engine._denoising._next
    assert engine._denoising._next.batch is loading


def test_a_bucket_that_was_never_met_is_not_begun_ahead(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations are tried with its shapes when it is, which pictures would wait for."""
    engine = hurried(gpu, monkeypatch)
    own = [batch(candidate(quick(size=size))) for size in (TINY, LOW)]
    for key in own[1].keys:
        engine._painter.graphs._refused.add(key)
    begun = []
    for at, each in enumerate(own * 2, start=1):
        list(engine.draw(each, (own * 2)[at:]))
        begun.append(engine._denoising._next and engine._denoising._next.batch)

    assert begun == [None, own[0], own[1], None]


def test_a_bucket_is_measured_in_the_room_that_graphs_held(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small card a call does not fit beside the graphs of others."""
    engine = recording(gpu)
    call = Denoiser.call

    def short(self: Denoiser, inputs: Named) -> Tensor:
        others = {key.bucket.size for key in engine._painter.graphs.keys} - {TINY}
        if inputs["latents"].shape[-1] == TINY.width // 8 and others:
            raise torch.OutOfMemoryError("too much")
        return call(self, inputs)

    monkeypatch.setattr(Denoiser, "call", short)
    own = [batch(candidate(quick(size=size))) for size in (LOW, TINY)]
    told = list(engine.measure({key: None for each in own for key in each.keys}))

    steps = [each for each in told if isinstance(each, Measured) and each.replayed]
    decodes = [each for each in told if isinstance(each, Measured) and each.decode]
    assert [each.bucket for each in steps] == [each.bucket for each in own]
    assert [each.bucket for each in decodes] == [each.bucket for each in own]


def test_why_a_bucket_cannot_be_measured_is_told(gpu: Gpu, controlnet: Model) -> None:
    engine = recording(gpu)
    gone = replace(controlnet, folder=controlnet.folder / "gone")
    [key] = batch(candidate(quick())).keys
    bucket = replace(key.bucket, controls=1)
    told = list(engine.measure({GraphKey(bucket, gone.digest, "gone"): gone, key: None}))

    assert [type(each) for each in told] == [Note, Measured, Measured]
    assert told[0].text.startswith("1 x 64x64, control gone: ")
    assert {each.bucket for each in told[1:]} == {key.bucket}
