"""Numerics are known by name without torch: what they depend on, and where fused ones are."""

from importlib.metadata import PackageNotFoundError

import pytest

from comicgen import numerics
from comicgen.environment import Environment
from comicgen.numerics import full_name, kind_of, why_not_fused

GPU = Environment("cuda", "a test's GPU", 0, "fp16", "2.13.0", "0.42.1", "5.24.0")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of what is installed, as far as numerics ask."""
    versions = {"triton": "3.6.0", "nvidia-cudnn-cu13": "9.19"}

    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(numerics, "version", version)
    return versions


def test_plain_numerics_have_no_digits(installed: dict[str, str]) -> None:
    assert full_name("plain", "a GPU", "2.13.0") == "plain"


def test_the_name_of_fused_numerics_says_their_kind_and_eight_digits(
    installed: dict[str, str],
) -> None:
    name = full_name("fused", "a GPU", "2.13.0")

    assert name == full_name("fused", "a GPU", "2.13.0")
    assert (name.partition("-")[0], len(name)) == ("fused", 14)
    assert int(name.removeprefix("fused-"), 16) >= 0
    assert [kind_of(each) for each in (name, "plain")] == ["fused", "plain"]


def test_recipe_versions_and_gpu_each_change_the_digits(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [full_name("fused", "a GPU", "2.13.0")]
    names += [full_name("fused", "another GPU", "2.13.0"), full_name("fused", "a GPU", "2.13.1")]
    for change in ({"triton": "3.7.0"}, {"nvidia-cudnn-cu13": "9.20"}, {"nvidia-cudnn-cu12": "9"}):
        installed.update(change)
        names.append(full_name("fused", "a GPU", "2.13.0"))
    monkeypatch.setattr(numerics, "FUSED", numerics.FUSED + 1)
    names.append(full_name("fused", "a GPU", "2.13.0"))

    assert len(set(names)) == len(names) == 7


@pytest.mark.parametrize(
    ("on_gpu", "precision", "why"),
    [
        (True, "fp16", ""),
        (True, "bf16", ""),
        (True, "fp32", "there are none in fp32, only in fp16 and bf16"),
        (False, "fp32", "a CPU has none"),
    ],
)
def test_fused_numerics_are_for_gpus_in_sixteen_bits(
    installed: dict[str, str], on_gpu: bool, precision: str, why: str
) -> None:
    assert why_not_fused(on_gpu, precision) == why


def test_fused_numerics_need_triton(installed: dict[str, str]) -> None:
    del installed["triton"]

    assert why_not_fused(True, "fp16") == "they need Triton, which is not installed"


def test_an_environment_draws_with_either_and_its_label_has_the_full_name(
    installed: dict[str, str],
) -> None:
    fused = GPU.drawing("fused")

    assert (GPU.kind, fused.kind) == ("plain", "fused")
    assert fused.label.endswith(f", {full_name('fused', GPU.hardware, GPU.torch)} numerics")
    assert fused.drawing("plain") == GPU
    assert fused.drawing("fused") is fused
