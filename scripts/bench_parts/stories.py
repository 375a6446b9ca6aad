"""The storyboards that both arms draw."""

from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageDraw

from bench_parts.setting import Setting
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard, load

WHO = ("a fox in a blue shirt", "an old woman", "a wizard with a book", "two dogs")
DOING = ("walking on the left", "waving", "standing on the right")
WHERE = ("on a beach at night", "in a library")
STYLE = "comic book style"

LORA_SETS = (
    (),
    (("a", 0.8),),
    (("b", 0.6),),
    (("a", 0.5), ("c", 0.7)),
    (("d", 0.9),),
    (("b", 0.4), ("d", 0.5)),
)


def one_panel(setting: Setting, candidates: int, controlled: bool = False) -> Storyboard:
    """A single panel without LoRAs."""
    file = setting.folder / f"panel-{candidates}{'-control' * controlled}.yaml"
    panel = _panel(0, setting.size)
    if controlled:
        panel["control"] = _control(setting, 0, setting.size)
    return _story(file, setting, [panel], setting.steps, candidates)


def many_panels(setting: Setting, panels: int, candidates: int) -> Storyboard:
    """Panels of one size that differ in their prompts, without LoRAs or control."""
    file = setting.folder / f"panels-{panels}-{candidates}.yaml"
    written = [_panel(number, setting.size) for number in range(panels)]
    return _story(file, setting, written, setting.steps, candidates)


def story(name: str, setting: Setting, panels: int, steps: int, candidates: int) -> Storyboard:
    """Panels of their own prompts, of which LoRA set and size change from one to the next.

    Every third has a control image of its own.
    """
    written = []
    for number in range(panels):
        size = setting.sizes[number // len(LORA_SETS) % len(setting.sizes)]
        panel = _panel(number, size)
        panel["loras"] = _loras(setting, number)
        if (number + number // len(LORA_SETS)) % 3 == 1:
            panel["control"] = _control(setting, number, size)
        written.append(panel)
    return _story(setting.folder / f"{name}.yaml", setting, written, steps, candidates)


def _story(
    file: Path, setting: Setting, panels: list[dict[str, Any]], steps: int, candidates: int
) -> Storyboard:
    content = {
        "model": str(setting.parts.model),
        "defaults": {
            "steps": steps,
            "guidance": 5,
            "sampler": "euler",
            "negative": "blurry",
            "candidates": candidates,
            "style": STYLE,
        },
        "panels": panels,
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load(file)


def _panel(number: int, size: Size) -> dict[str, Any]:
    who, rest = WHO[number % len(WHO)], number // len(WHO)
    prompt = f"{who} {DOING[rest % len(DOING)]} {WHERE[rest // len(DOING) % len(WHERE)]}"
    return {"id": f"p{number:02d}", "prompt": f"{prompt}, scene {number}", "size": str(size)}


def _loras(setting: Setting, number: int) -> list[dict[str, Any]]:
    files = {file.stem: str(file) for file in setting.parts.loras}
    chosen = LORA_SETS[number % len(LORA_SETS)]
    return [{"file": files[name], "weight": weight} for name, weight in chosen]


def _control(setting: Setting, number: int, size: Size) -> dict[str, Any]:
    """White lines on black, of the panel's own size."""
    file = setting.folder / f"map-{size}-{number:02d}.png"
    picture = Image.new("RGB", (size.width, size.height))
    pen, shift = ImageDraw.Draw(picture), number * size.width // 64
    box = (shift, size.height // 4, shift + size.width // 2, size.height * 3 // 4)
    pen.ellipse(box, outline="white", width=3)
    pen.line((0, size.height - shift, size.width, size.height // 2), fill="white", width=3)
    picture.save(file)
    return {"model": str(setting.parts.controlnet), "image": str(file), "weight": 0.7}
