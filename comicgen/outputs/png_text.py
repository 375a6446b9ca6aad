"""What a PNG tells of itself: `parameters` for other programs, `comicgen` for this one.

`parameters` has the form of AUTOMATIC1111's web UI (modules/infotext_utils.py): the prompt, a
line with the negative prompt, a line of settings. Title and caption stay out: a picture is kept
when they change, and would tell the old ones.
"""

import json
from pathlib import PurePath

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comicgen import __version__
from comicgen.outputs.png import Encoding
from comicgen.plan import Candidate
from comicgen.storyboard import Control, Lora, Model

A1111_SAMPLERS = {
    "euler": {"Sampler": "Euler", "Schedule type": "Uniform"},
    "euler a": {"Sampler": "Euler a", "Schedule type": "Uniform"},
    "dpm++ 2m": {"Sampler": "DPM++ 2M", "Schedule type": "Uniform"},
    "dpm++ 2m karras": {"Sampler": "DPM++ 2M", "Schedule type": "Karras"},
    "ddim": {"Sampler": "DDIM"},
    "unipc": {"Sampler": "UniPC"},
}


def encoding(image: Image.Image, candidate: Candidate, model: Model) -> Encoding:
    """The PNG of a picture: a function of its pixels and of what was asked for, of nothing else."""
    text = PngInfo()
    text.add_text("parameters", parameters(candidate, model))  # iTXt unless Latin-1
    text.add_text("comicgen", _json(candidate))
    return Encoding.of(image, text)


def parameters(candidate: Candidate, model: Model) -> str:
    """Prompt and settings in the web UI's form."""
    panel = candidate.panel
    lines = [panel.prompt]
    if panel.negative:
        lines.append(f"Negative prompt: {panel.negative}")
    settings = {
        "Steps": panel.steps,
        **A1111_SAMPLERS[panel.sampler],
        "CFG scale": _number(panel.guidance),
        "Seed": candidate.seed,
        "Size": panel.size,
        "Model hash": model.digest[:10],
        "Model": _name(model.written),
        **_loras(panel.loras),
        **_control(panel.control),
        "Version": f"comicgen {__version__}",
    }
    lines.append(", ".join(f"{key}: {_quoted(str(value))}" for key, value in settings.items()))
    return "\n".join(lines)


def _json(candidate: Candidate) -> str:
    told = {
        "panel": candidate.panel.id,
        "candidate": candidate.number,
        "fingerprint": candidate.fingerprint,
        "fields": candidate.fields,
    }
    return json.dumps(told, ensure_ascii=False, sort_keys=True)


def _loras(loras: tuple[Lora, ...]) -> dict[str, str]:
    hashes = ", ".join(f"{_name(lora.written)}: {lora.digest[:12]}" for lora in loras)
    return {"Lora hashes": hashes} if hashes else {}


def _control(control: Control | None) -> dict[str, str]:
    if control is None:
        return {}
    told = {
        "Model": f"{_name(control.model.written)} [{control.model.digest[:8]}]",
        "Weight": _number(control.weight),
        "Guidance Start": _number(control.start),
        "Guidance End": _number(control.end),
    }
    return {"ControlNet 0": ", ".join(f"{key}: {value}" for key, value in told.items())}


def _name(written: str) -> str:
    """The last part of a path, without ending; commas and colons would end a name in a list."""
    return PurePath(written.removesuffix(".safetensors")).name.translate({44: None, 58: None})


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def _quoted(value: str) -> str:
    """As a JSON string where the bare value would be read as several, or as another."""
    special = set(value) & set(',:\n"') or value != value.strip()
    return json.dumps(value, ensure_ascii=False) if special else value
