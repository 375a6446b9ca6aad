"""What all tests share: the gpu marker's meaning, a cache, the embedded model loaded once."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import comicgen.diffusion  # noqa: F401 - sets how torch's threads wait, before torch is loaded
from comicgen import beside
from comicgen.plan import prices

if TYPE_CHECKING:
    from recordings import Gpu

    from comicgen.diffusion.engine import DiffusionEngine
    from comicgen.diffusion.models import Components
    from comicgen.storyboard import Model

POCKET_MODULES = (
    *("adapters", "captions", "card", "channels_last", "drawing", "evaluate", "feed", "floors"),
    *("measures", "networks", "noir", "parts"),
    *("people", "person_scenes", "pixels", "plainly", "pool", "reader", "reader_stage", "scenes"),
    *("sections", "spoil", "train", "training"),
    *("unet_stage", "unseen", "vocabulary"),
)
POCKET_SCRIPTS = Path(__file__).parent.parent / "scripts" / "pocket"


def pytest_configure(config: pytest.Config) -> None:
    # diffusers hands tensors to numpy, and torch's __array__ has no copy keyword yet.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept:DeprecationWarning"
    )


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Digests are remembered in a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMICGEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _unended() -> Iterator[None]:
    """A command that is tried in this process does not end it, whatever threads are left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "end", lambda code: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _settled_prices() -> Iterator[None]:
    """Tests of plans go by prices that stay, whatever steps are measured to take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, "_STEP", {1: 282, 2: 535, 4: 1060, 8: 2100, 16: 4380})
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """COMICGEN_REQUIRE_GPU says how many GPUs there must be, so that no test skips for want."""
    if not item.get_closest_marker("gpu"):
        return
    import torch

    several = item.get_closest_marker("gpus")
    needed, found = several.args[0] if several else 1, torch.cuda.device_count()
    if found >= needed:
        return
    required = int(os.environ.get("COMICGEN_REQUIRE_GPU") or 0)
    if required >= needed:
        pytest.fail(f"{found} CUDA devices, COMICGEN_REQUIRE_GPU={required}", pytrace=False)
    pytest.skip(f"{found} CUDA devices, needs {needed}")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> "Gpu":
    """What stands for a GPU where graphs are recorded without one."""
    from recordings import Gpu

    own = Gpu()
    own.install(monkeypatch)
    return own


@pytest.fixture(scope="session")
def pocket() -> "Components":
    """The embedded model on the CPU in float32."""
    import torch

    from comicgen.diffusion.models import load_model
    from comicgen.pocket import MODEL

    return load_model(MODEL, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def engine(pocket: "Components") -> "DiffusionEngine":
    """Draws with the embedded model on the CPU."""
    from comicgen.diffusion.engine import DiffusionEngine

    return DiffusionEngine(pocket)


@pytest.fixture(scope="session")
def controlnet(tmp_path_factory: pytest.TempPathFactory, pocket: "Components") -> "Model":
    """A random ControlNet for the embedded model."""
    from drawings import write_controlnet

    return write_controlnet(tmp_path_factory.mktemp("controlnet"), pocket)


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The modules of scripts/pocket, by name; some are called as modules of the tests are."""
    names = [file.stem for file in POCKET_SCRIPTS.glob("*.py")]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(POCKET_SCRIPTS))
        yield SimpleNamespace(**{name: import_module(name) for name in POCKET_MODULES})
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(hidden)
