"""Where the time of one image goes: the kernels of a batch, by what they do."""

import re
from collections import Counter
from typing import Any

from bench_parts import ours, stories
from bench_parts.record import covered, recorded
from bench_parts.setting import Setting, say

COUNT = 8
"""Pictures, drawn side by side."""

COMMONEST = 24
KINDS = {
    "attention": r"flash|fmha|sdpa|attention",
    "our kernels": r"^_(channel_moments|group_affine|affine|add|layer_norm|geglu|quarters"
    r"|interleave|weigh)",
    "convolutions": r"conv|fprop|im2col|nchwTo|nhwcTo",
    "products": r"gemm|nvjet|cutlass|splitK|cublas",
    "copies": r"^Mem(cpy|set)",
}
"""Of kernels: what is looked for in a name, in this order."""

OTHER = "torch's other kernels"


def measure(setting: Setting) -> dict[str, Any]:
    """Milliseconds of the GPU for one picture, by kind, and by the kernels that take the most."""
    storyboard = stories.one_panel(setting, COUNT)
    engine, batch = ours.open_engine(storyboard, setting), ours.one_batch(storyboard)
    for _ in range(2):
        ours.draw(engine, batch)
    spans = recorded(lambda: ours.draw(engine, batch))
    kinds: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for span in spans:
        kinds[kind_of(span.name)] += span.ended - span.begun
        names[span.name] += span.ended - span.begun
    busy, gaps = covered(spans)
    told = _milliseconds(kinds) | _milliseconds(Counter({"all": busy, "idle between": sum(gaps)}))
    say(f"shares   {', '.join(f'{name} {each} ms' for name, each in told.items())}")
    return {
        "pictures": COUNT,
        "kernels of a batch": len(spans),
        "of one picture, ms": told,
        "kernels that take the most, ms": _milliseconds(names),
    }


def kind_of(name: str) -> str:
    """What a kernel of this name does."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), OTHER)


def _milliseconds(nanoseconds: Counter[str]) -> dict[str, float]:
    most = nanoseconds.most_common(COMMONEST)
    return {name: round(spent / 1e6 / COUNT, 3) for name, spent in most}
