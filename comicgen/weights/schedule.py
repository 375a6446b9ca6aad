"""How a model was trained to see noise: the part of its scheduler's config that is its own.

The rest of that config says how its maker liked to sample. A storyboard's sampler says that here,
so a leftover such as `use_karras_sigmas` or `thresholding` changes no picture.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comicgen.errors import InputError
from comicgen.weights.folder import read_config

_OTHER_NOISE = r"EDM|FlowMatch|CosineDPM"


def _is_one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_share(value: Any) -> bool:
    return type(value) is float and 0 < value < 1


_OWN: Mapping[str, Callable[[Any], bool]] = {
    "num_train_timesteps": lambda value: _is_whole(value) and value > 0,
    "beta_start": _is_share,
    "beta_end": _is_share,
    "beta_schedule": _is_one_of("linear", "scaled_linear", "squaredcos_cap_v2"),
    "trained_betas": lambda value: (
        value is None or (isinstance(value, list) and all(map(_is_share, value)))
    ),
    "prediction_type": _is_one_of("epsilon", "v_prediction"),
    "timestep_spacing": _is_one_of("leading", "trailing", "linspace"),
    "steps_offset": _is_whole,
    "rescale_betas_zero_snr": lambda value: type(value) is bool,
}


def read_schedule(file: Path) -> dict[str, Any]:
    """Read the model's own settings from a `scheduler_config.json`, in diffusers' words.

    Raises:
        InputError: it is missing or broken, or the model was trained with another kind of noise
            or to predict something else than noise or velocity.
    """
    config = read_config(file)
    kind = str(config.get("_class_name"))
    if re.match(_OTHER_NOISE, kind):
        raise InputError(
            f"{file}: is a {kind}, made for another kind of noise than SDXL's; use another model"
        )
    own = {key: config[key] for key in _OWN if key in config}
    for key, value in own.items():
        if not _OWN[key](value):
            raise InputError(
                f"{file}: its {key} is {value!r}, which comicgen cannot draw with; "
                "copy the file again, or use another model"
            )
    return own
