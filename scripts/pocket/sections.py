"""The sections of an evaluation: each draws, measures, and gives a list of rows."""

import copy
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from captions import Facts
from diffusers import StableDiffusionXLPipeline
from drawing import STEPS, Steering, draw, load_controlnet, load_pipeline, through_vae
from lines import line_art
from measures import (
    chroma,
    each_of,
    less,
    line_agreement,
    more,
    psnr,
    saturation,
    sharpness,
    squared_error,
)
from noir import in_noir
from people import NAMES
from PIL import Image
from reader import NO_ONE, Reader, Who, read, recognised, score
from scenes import HOLD_OUT_SEED
from torch import Tensor
from unseen import SIZE, Scenes, named
from vocabulary import DEGRADED, SIZES

SHEET_COLUMNS = 10
WEIGHTS = (0.0, 0.5, 1.0)
SPEED_THREADS = 2
"""Of the CPU, where the time of one picture is taken."""

Row = dict[str, str | int | float | dict[str, int] | None]
"""Figures by their names, after `what` they are of; `asked` counts the questions of a share."""


@dataclass
class Studio:
    """What is measured, and with what. out: for sheets; sets: composed scenes, by kind."""

    folder: Path
    out: Path
    pipeline: StableDiffusionXLPipeline
    reader: Reader
    who: Who
    sets: dict[str, Scenes]
    guidance: float
    copies: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.pipeline.unet.device

    def draw(self, scenes: Scenes, negative: str = "", steering: Steering | None = None) -> Tensor:
        """Pictures of the scenes' captions; the same noise in every call."""
        count = len(scenes.captions)
        seeds = range(HOLD_OUT_SEED, HOLD_OUT_SEED + count)
        return draw(
            self.pipeline,
            scenes.captions,
            [negative] * count,
            scenes.size,
            seeds,
            guidance=self.guidance,
            steering=steering,
        )

    @cached_property
    def plain(self) -> Tensor:
        """The pictures of the set `any` by the model alone."""
        return self.draw(self.sets["any"])

    def coded(self, kind: str) -> tuple[Tensor, int]:
        """The composed scenes of a set, passed once through the VAE; see `through_vae`."""
        if kind not in self.copies:
            self.copies[kind] = through_vae(self.pipeline.vae, self.sets[kind].pictures)
        return self.copies[kind]

    def mean(self, figure: Callable[..., Tensor], *pictures: Tensor) -> float:
        """Of a figure of each picture."""
        return each_of(figure, self.device, *pictures).mean().item()

    def attributes(self, pictures: Tensor, facts: list[Facts], *only: str) -> Row:
        """Shares of what was read right, and how often it was asked."""
        shares = score(read(self.reader, pictures), facts)
        kept = {name: share for name, share in shares.items() if not only or name in only}
        return {
            **{name: share.value for name, share in kept.items()},
            "asked": {name: share.asked for name, share in kept.items()},
        }

    def sheet(self, name: str, rows: list[Tensor]) -> None:
        """<out>/sheets/<name>.png: a row of pictures (n, 3, h, w), uint8, for each tensor."""
        rows = [row for row in rows if len(row)]
        h, w = rows[0].shape[2:]
        page = torch.full((3, h * len(rows), w * SHEET_COLUMNS), 255, dtype=torch.uint8)
        for y, row in enumerate(rows):
            for x, picture in enumerate(row[:SHEET_COLUMNS]):
                page[:, y * h : (y + 1) * h, x * w : (x + 1) * w] = picture
        folder = self.out / "sheets"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(page.permute(1, 2, 0).numpy()).save(folder / f"{name}.png")


def judge_vae(studio: Studio) -> list[Row]:
    """In the model's precision, and on a GPU in float32 as well."""
    scenes, own = studio.sets["any"].pictures, studio.pipeline.vae.dtype
    copies = {own: studio.coded("any")}
    if own != torch.float32:
        exact = copy.deepcopy(studio.pipeline.vae).float()
        copies[torch.float32] = through_vae(exact, scenes)
    studio.sheet("vae", _three_times(scenes, copies[own][0]))
    return [_vae_row(str(dtype), scenes, *each) for dtype, each in copies.items()]


def _vae_row(dtype: str, scenes: Tensor, copies: Tensor, broken: int) -> Row:
    squared = each_of(squared_error, copies.device, copies, scenes)
    return {
        "what": dtype.removeprefix("torch."),
        "pictures": len(scenes),
        "mean PSNR, dB": psnr(squared).mean().item(),
        "PSNR of the mean error, dB": psnr(squared.mean()).item(),
        "values not finite": broken,
    }


def judge_attributes(studio: Studio) -> list[Row]:
    """What is read of the composed scenes tells how far to trust what is read of the drawn."""
    scenes, sources = studio.sets["any"], _sources(studio, "any", studio.plain)
    alone = [scenes.facts[n] for n in scenes.alone]
    studio.sheet("drawn", _three_times(scenes.pictures, studio.plain))
    return [
        *(_row(f"all: {what}", studio, each, scenes.facts) for what, each in sources.items()),
        *(
            _row(f"one subject: {what}", studio, each[scenes.alone], alone)
            for what, each in sources.items()
        ),
    ]


def judge_pairs(studio: Studio) -> list[Row]:
    """One subject in a setting that training never showed it in."""
    kind = "never together"
    scenes = studio.sets[kind]
    drawn = studio.draw(scenes)
    studio.sheet("never-together", _three_times(scenes.pictures, drawn))
    return [
        _row(f"{kind}: {what}", studio, pictures, scenes.facts)
        for what, pictures in _sources(studio, kind, drawn).items()
    ]


def _sources(studio: Studio, kind: str, drawn: Tensor) -> dict[str, Tensor]:
    composed = studio.sets[kind].pictures
    return {"composed": composed, "composed, coded": studio.coded(kind)[0], "drawn": drawn}


def _three_times(*rows: Tensor) -> list[Tensor]:
    """The first ten of each row, then the next ten, then the next."""
    tens = [slice(n, n + SHEET_COLUMNS) for n in range(0, 3 * SHEET_COLUMNS, SHEET_COLUMNS)]
    return [row[ten] for ten in tens for row in rows]


def _row(what: str, studio: Studio, pictures: Tensor, facts: list[Facts]) -> Row:
    return {"what": what, "pictures": len(pictures), **studio.attributes(pictures, facts)}


def judge_sizes(studio: Studio) -> list[Row]:
    rows = []
    for size in SIZES:
        scenes = studio.sets["any" if size == SIZE else named(size)]
        pictures = studio.plain if size == SIZE else studio.draw(scenes)
        rows.append(_row(f"{named(size)}: composed", studio, scenes.pictures, scenes.facts))
        rows.append(_row(f"{named(size)}: drawn", studio, pictures, scenes.facts))
        studio.sheet(named(size), [scenes.pictures, pictures])
    return rows


def judge_lineart(studio: Studio) -> list[Row]:
    """Pictures drawn along the lines of a composed scene, with its own caption."""
    controlnet = load_controlnet(studio.folder / "controlnets" / "lineart", studio.device)
    scenes = studio.sets["any"]
    maps = each_of(line_art, studio.device, scenes.pictures)
    drawn = {"weight 0": studio.plain}
    for weight in WEIGHTS[1:]:
        steering = Steering(controlnet, maps, weight)
        drawn[f"weight {weight:g}"] = studio.draw(scenes, steering=steering)
    shown = (maps * 255).to(torch.uint8).expand(-1, 3, -1, -1)
    studio.sheet("lineart", [scenes.pictures, shown, *drawn.values()])
    return [
        {
            "what": what,
            "pictures": len(pictures),
            "F1 of lines": studio.mean(line_agreement, pictures, scenes.pictures),
            **studio.attributes(pictures, scenes.facts),
        }
        for what, pictures in {**drawn, "composed, coded": studio.coded("any")[0]}.items()
    ]


def judge_noir(studio: Studio) -> list[Row]:
    """Reductions are from weight 0, in percent. The rule is what the LoRA learns from."""
    scenes, plain = studio.sets["any"], studio.plain
    file = lora_file(studio.folder, "noir")
    drawn = {"weight 0": plain, **_with_lora(studio, file, scenes, WEIGHTS[1:])}
    drawn["the rule, of weight 0"] = each_of(in_noir, studio.device, plain)
    studio.sheet("noir", list(drawn.values()))
    saturation_before, chroma_before = (studio.mean(each, plain) for each in (saturation, chroma))
    return [
        {
            "what": what,
            "pictures": len(pictures),
            "saturation": (saturated := studio.mean(saturation, pictures)),
            "saturation less, %": less(saturated, saturation_before),
            "chroma": (chromatic := studio.mean(chroma, pictures)),
            "chroma less, %": less(chromatic, chroma_before),
            **studio.attributes(pictures, scenes.facts, "subject", "setting"),
        }
        for what, pictures in drawn.items()
    ]


def _with_lora(
    studio: Studio, file: Path, scenes: Scenes, weights: Sequence[float]
) -> dict[str, Tensor]:
    """Pictures of the scenes' captions, by `weight <n>`."""
    studio.pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name=file.stem)
    drawn = {}
    for weight in weights:
        studio.pipeline.set_adapters(file.stem, weight)
        drawn[f"weight {weight:g}"] = studio.draw(scenes)
    studio.pipeline.unload_lora_weights()
    return drawn


def judge_people(studio: Studio) -> list[Row]:
    """How often the one whom the prompt names is recognised, in settings new to the LoRA."""
    rows, sheets = [], []
    for n, name in enumerate(NAMES):
        if name not in studio.sets:
            continue
        file, scenes = lora_file(studio.folder, name), studio.sets[name]
        drawn = _with_lora(studio, file, scenes, (1.0, 0.0))
        sheets += [scenes.pictures, drawn["weight 1"], drawn["weight 0"]]
        for what, pictures in {"composed": scenes.pictures, **drawn}.items():
            rows.append(
                {
                    "what": f"{name}: {what}",
                    "pictures": len(pictures),
                    "recognised": (recognised(studio.who, pictures) == n).float().mean().item(),
                    **studio.attributes(pictures, scenes.facts, "setting"),
                }
            )
    scenes = studio.sets["any"]
    nobody = recognised(studio.who, scenes.pictures) == NO_ONE
    rows.append(
        {
            "what": "scenes without them: composed, nobody recognised",
            "pictures": len(nobody),
            "recognised": nobody.float().mean().item(),
        }
    )
    studio.sheet("people", sheets)
    return rows


def judge_negative(studio: Studio) -> list[Row]:
    scenes = studio.sets["any"]
    drawn = {"": studio.plain, DEGRADED: studio.draw(scenes, DEGRADED)}
    studio.sheet("negative", list(drawn.values()))
    before = studio.mean(sharpness, drawn[""])
    return [
        {
            "what": f'"{negative}"',
            "pictures": len(pictures),
            "variance of the Laplacian": (sharp := studio.mean(sharpness, pictures)),
            "change, %": more(sharp, before),
            **studio.attributes(pictures, scenes.facts),
        }
        for negative, pictures in drawn.items()
    ]


def judge_speed(studio: Studio) -> list[Row]:
    """On a GPU and on a CPU."""
    rows = []
    if studio.device.type == "cuda":
        rows.append(_timed(studio, studio.pipeline))
    threads = torch.get_num_threads()
    torch.set_num_threads(SPEED_THREADS)
    rows.append(_timed(studio, load_pipeline(studio.folder / "model", torch.device("cpu"))))
    torch.set_num_threads(threads)
    return rows


def _timed(studio: Studio, pipeline: StableDiffusionXLPipeline, count: int = 3) -> Row:
    """Of pictures drawn one by one, after one that does not count."""
    captions, took, device = studio.sets["any"].captions, [], pipeline.unet.device.type
    for n in range(count + 1):
        began = time.perf_counter()
        draw(pipeline, [captions[n % len(captions)]], [""], SIZE, [HOLD_OUT_SEED + n])
        took.append(time.perf_counter() - began)
    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    return {
        "what": f"{named(SIZE)}, {STEPS} steps, on {name}, torch {torch.__version__}",
        "device": device,
        "pictures": count,
        "median seconds": statistics.median(took[1:]),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The name that Linux tells, else what Python knows."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


SECTIONS: dict[str, Callable[[Studio], list[Row]]] = {
    "vae": judge_vae,
    "attributes": judge_attributes,
    "pairs": judge_pairs,
    "sizes": judge_sizes,
    "lineart": judge_lineart,
    "noir": judge_noir,
    "people": judge_people,
    "negative": judge_negative,
    "speed": judge_speed,
}
"""What gives the rows of each section, in the order of the report."""


def lora_file(folder: Path, name: str) -> Path:
    return folder / "loras" / f"{name}.safetensors"


def people_in(folder: Path) -> list[str]:
    """Of whom there are LoRAs."""
    return [name for name in NAMES if lora_file(folder, name).exists()]


def sections_for(folder: Path) -> list[str]:
    """Those for which the folder holds what they measure."""
    missing = set()
    if not (folder / "controlnets" / "lineart").exists():
        missing.add("lineart")
    if not lora_file(folder, "noir").exists():
        missing.add("noir")
    if not people_in(folder):
        missing.add("people")
    return [name for name in SECTIONS if name not in missing]
