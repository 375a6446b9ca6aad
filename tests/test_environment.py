"""The environment is found from files and versions, without torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from comicgen import environment
from comicgen.environment import Environment, current, default_batch, driver
from comicgen.errors import CommandError

CPU_BUILD, CUDA_BUILD = "2.13.0+cpu", "2.13.0"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of which /proc and /dev are empty folders, with a CUDA build of torch."""
    versions = {"torch": CUDA_BUILD, "diffusers": "0.42.1", "transformers": "5.24.0"}
    monkeypatch.setattr(environment, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(environment, "_DEV", tmp_path / "dev")
    monkeypatch.setattr(environment, "version", versions.__getitem__)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for folder in ("proc", "dev", "bin"):
        (tmp_path / folder).mkdir()
    return tmp_path


def put_cpu(machine: Path, name: str) -> None:
    (machine / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: {name}\nflags\t: avx2\n")


def put_gpus(machine: Path, *names: str) -> None:
    (machine / "dev/nvidiactl").touch()
    for index, name in enumerate(names):
        folder = machine / f"proc/driver/nvidia/gpus/0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 16\n")


def put_nvidia_smi(machine: Path, *lines: str) -> None:
    script = machine / "bin/nvidia-smi"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    script.chmod(0o755)


def test_a_machine_without_a_driver_draws_on_its_cpu_in_fp32(machine: Path) -> None:
    put_cpu(machine, "AMD EPYC 9B14")
    found = current("auto", None)

    assert (found.device, found.precision) == ("cpu", "fp32")
    assert re.fullmatch(r"AMD EPYC 9B14 \(\w+\)", found.hardware)
    assert default_batch(found) == 1


def test_a_cpu_without_a_model_name_still_has_one(machine: Path) -> None:
    assert re.fullmatch(r".+ \(\w+\)", current("cpu", None).hardware)


def test_a_machine_with_a_driver_draws_on_its_first_gpu_in_fp16(machine: Path) -> None:
    put_gpus(machine, "NVIDIA H200", "NVIDIA L4")
    found = current("auto", None)

    assert (found.device, found.hardware, found.precision) == ("cuda", "NVIDIA H200", "fp16")
    assert default_batch(found) == 8


def test_a_gpu_may_be_named_by_its_number(machine: Path) -> None:
    put_gpus(machine, "NVIDIA H200", "NVIDIA L4")

    assert current("cuda:1", "bf16").hardware == "NVIDIA L4"
    assert current("cuda:1", "bf16").precision == "bf16"


def test_a_cpu_build_of_torch_leaves_the_gpu_alone(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_gpus(machine, "NVIDIA H200")
    monkeypatch.setattr(environment, "version", lambda _: CPU_BUILD)

    assert current("auto", None).device == "cpu"
    with pytest.raises(CommandError, match="built for CPUs only; install a CUDA build"):
        current("cuda", None)


def test_nvidia_smi_is_asked_where_the_driver_has_no_files(machine: Path) -> None:
    put_nvidia_smi(machine, "GPU 0: NVIDIA H200 (UUID: GPU-1)", "  MIG 1g Device 0: (UUID: MIG-2)")

    assert current("auto", None).hardware == "NVIDIA H200"


def test_driver_files_without_a_device_are_another_machines(machine: Path) -> None:
    put_gpus(machine, "NVIDIA H200")
    (machine / "dev/nvidiactl").unlink()
    put_nvidia_smi(machine, "No devices found.")

    assert current("auto", None).device == "cpu"


@pytest.mark.parametrize(
    ("visible", "hardware"),
    [("1", "NVIDIA L4"), ("1,0", "NVIDIA L4"), ("GPU-5ea", "NVIDIA H200")],
)
def test_cuda_visible_devices_chooses_the_gpu(
    machine: Path, monkeypatch: pytest.MonkeyPatch, visible: str, hardware: str
) -> None:
    put_gpus(machine, "NVIDIA H200", "NVIDIA L4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert current("cuda", None).hardware == hardware


@pytest.mark.parametrize("visible", ["", "-1", "2"])
def test_a_gpu_that_is_hidden_is_not_used(
    machine: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    put_gpus(machine, "NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert current("auto", None).device == "cpu"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "--device gpu: no such device; use auto, cpu, cuda or cuda:N"),
        ("cuda:x", "no such device"),
        ("cuda:1", "--device cuda:1: only 1 NVIDIA GPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused(machine: Path, device: str, message: str) -> None:
    put_gpus(machine, "NVIDIA H200")

    with pytest.raises(CommandError) as caught:
        current(device, None)
    assert message in str(caught.value)


def test_a_gpu_on_a_machine_without_one_is_refused(machine: Path) -> None:
    with pytest.raises(CommandError, match="no NVIDIA GPU found here; use --device auto"):
        current("cuda", None)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 28 02:20:32 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    ],
)
def test_the_driver_tells_its_version(machine: Path, line: str) -> None:
    put_gpus(machine, "NVIDIA H200")
    (machine / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc 13.3.0\n")

    assert driver() == "580.159.04"


def test_nvidia_smi_tells_the_drivers_version_where_it_has_no_files(machine: Path) -> None:
    assert driver() == ""
    put_nvidia_smi(machine, "580.159.04", "580.159.04")

    assert driver() == "580.159.04"


def test_the_label_tells_all_but_which_of_equal_gpus() -> None:
    one = Environment("cuda:0", "NVIDIA H200", 0, "fp16", "2.13.0", "0.42.1", "5.24.0")
    two = Environment("cuda:1", "NVIDIA H200", 0, "fp16", "2.13.0", "0.42.1", "5.24.0")

    assert one.label == two.label
    assert one.label == (
        "NVIDIA H200, fp16, torch 2.13.0, diffusers 0.42.1, transformers 5.24.0, plain numerics"
    )
    assert Environment(**two.to_json()) == two


def test_the_number_of_threads_is_part_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    three = current("cpu", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")

    assert "with 3 threads" in three.label
    assert current("cpu", None).label != three.label


def test_neither_the_plan_nor_the_environment_loads_torch() -> None:
    code = (
        "import sys, comicgen.plan, comicgen.environment as e; e.current('cpu', None);"
        "print(sorted({'torch', 'diffusers', 'transformers', 'peft'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert ran.stdout.strip() == "[]"
