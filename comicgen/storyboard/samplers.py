"""The samplers by the names that A1111 gave them."""

SAMPLERS = ("euler", "euler a", "dpm++ 2m", "dpm++ 2m karras", "ddim", "unipc")

SPELLINGS = (
    *SAMPLERS,
    *("Euler", "Euler a", "DPM++ 2M", "DPM++ 2M Karras", "DDIM", "UniPC"),
    *("euler_a", "dpmpp_2m", "dpmpp_2m_karras"),
)
"""Usual ways to write them; any case, and _ for a space, are read too."""

_ELSEWHERE = (
    "heun",
    "lms",
    "dpm2",
    "dpm2 a",
    "dpm++ 2m sde",
    "dpm++ sde",
    "dpm++ 2s a",
    "dpm++ 3m sde",
    "dpm fast",
    "dpm adaptive",
)
_SCHEDULES = (
    "karras",
    "exponential",
    "beta",
    "sgm uniform",
    "simple",
    "normal",
    "uniform",
    "polyexponential",
    "kl optimal",
    "turbo",
    "gits",
    "align your steps",
)


def spelled(text: str) -> str:
    """A sampler's name in lower case, with single spaces: DPMPP_2M_Karras is dpm++ 2m karras."""
    return " ".join(text.lower().replace("_", " ").split()).replace("dpmpp", "dpm++")


def known_elsewhere(name: str) -> bool:
    """Whether a spelled name is a sampler of A1111, perhaps with a schedule, that we lack."""
    if name in SAMPLERS:
        return False
    base = next(
        (name.removesuffix(f" {end}") for end in _SCHEDULES if name.endswith(f" {end}")), name
    )
    return base in _ELSEWHERE or base in SAMPLERS
