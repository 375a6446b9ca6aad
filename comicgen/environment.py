"""What a folder is drawn with: device, precision, versions, numerics. Found without torch."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from shutil import which
from typing import Self

from comicgen.errors import CommandError
from comicgen.numerics import Numerics, full_name, kind_of, why_not_fused

_PROC = Path("/proc")
_DEV = Path("/dev")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the same fields give the same bits.

    `device` is torch's word for it (cpu, cuda, cuda:1), `hardware` its name; `threads` share
    the work of a kernel on a CPU, and split sums by their number (0 on a GPU, where they do not);
    `precision` is fp32, fp16 or bf16; the rest are versions, and `numerics` the choice of kernels
    by its full name.
    """

    device: str
    hardware: str
    threads: int
    precision: str
    torch: str
    diffusers: str
    transformers: str
    numerics: str = "plain"

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def label(self) -> str:
        """All of it in one line, except which of several equal GPUs it is."""
        threads = f" with {self.threads} threads" if self.threads else ""
        return (
            f"{self.hardware}{threads}, {self.precision}, torch {self.torch}, "
            f"diffusers {self.diffusers}, transformers {self.transformers}, "
            f"{self.numerics} numerics"
        )

    @property
    def kind(self) -> Numerics:
        """Whether its numerics are plain or fused."""
        return kind_of(self.numerics)

    @property
    def why_not_fused(self) -> str:
        """Why nothing can be drawn here with fused numerics; "" where it can."""
        return why_not_fused(self.on_gpu, self.precision)

    def drawing(self, numerics: Numerics) -> Self:
        """The same with these numerics."""
        if numerics == self.kind:
            return self
        return replace(self, numerics=full_name(numerics, self.hardware, self.torch))

    def to_json(self) -> dict[str, str | int]:
        """As plain JSON, for the manifest."""
        return asdict(self)


def current(device: str, precision: str | None) -> Environment:
    """The environment of a run on this machine on `device`: auto, cpu, cuda or cuda:N.

    `precision` None means fp32 on a CPU and fp16 on a GPU.

    Raises:
        CommandError: no such device, or no such device here.
    """
    torch = version("torch")
    if device == "auto":
        device = "cuda" if _can_use_gpu(torch) and _gpus() else "cpu"
    on_cpu = device == "cpu"
    return Environment(
        device,
        _cpu() if on_cpu else _gpu(device, torch),
        _threads() if on_cpu else 0,
        precision or ("fp32" if on_cpu else "fp16"),
        torch,
        version("diffusers"),
        version("transformers"),
    )


def default_batch(environment: Environment) -> int:
    """How many lanes a batch gets: on a CPU they would only wait for each other."""
    return 8 if environment.on_gpu else 1


def driver() -> str:
    """The version of NVIDIA's driver; "" where there is none."""
    told = _PROC / "driver/nvidia/version"
    text = told.read_text(errors="replace") if told.exists() else ""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    if match:
        return match[1]
    listed = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return listed.partition("\n")[0]


def _can_use_gpu(torch: str) -> bool:
    return not torch.endswith("+cpu")


def _cpu() -> str:
    """Model and instruction set: kernels are chosen by both, and their bits with them."""
    cpuinfo = _PROC / "cpuinfo"
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = model[1].strip() if model else platform.processor() or "CPU"
    return f"{name} ({platform.machine()})"


def _threads() -> int:
    """As many as OMP_NUM_THREADS says, else as there are cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))


def _gpu(device: str, torch: str) -> str:
    """The name of the GPU that torch would call `device`."""
    match = re.fullmatch(r"cuda(?::(0|[1-9]\d*))?", device)
    if not match:
        raise CommandError(f"--device {device}: no such device; use auto, cpu, cuda or cuda:N")
    if not _can_use_gpu(torch):
        raise CommandError(
            f"--device {device}: torch {torch} is built for CPUs only; "
            "install a CUDA build of torch, or use --device cpu"
        )
    gpus, index = _gpus(), int(match[1] or 0)
    if index >= len(gpus):
        found = f"only {len(gpus)} NVIDIA GPU(s)" if gpus else "no NVIDIA GPU"
        raise CommandError(f"--device {device}: {found} found here; use --device auto")
    return gpus[index]


def _gpus() -> Sequence[str]:
    """Names of the GPUs that torch would see, in the order of their PCI addresses."""
    names = _gpus_of_driver() or _gpus_of_nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    chosen = [word.strip() for word in visible.split(",")]
    if all(word.isdecimal() for word in chosen):
        return [names[int(word)] for word in chosen if int(word) < len(names)]
    return [] if chosen[0] in ("", "-1") else names


def _gpus_of_driver() -> list[str]:
    """From the driver's own files; a container may see these without having the device."""
    if not (_DEV / "nvidiactl").exists():
        return []
    files = sorted((_PROC / "driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE) for file in files)
    return [match[1].strip() for match in found if match]


def _gpus_of_nvidia_smi() -> list[str]:
    return re.findall(r"^GPU \d+: (.+?) \(UUID", _nvidia_smi("-L"), re.MULTILINE)


def _nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi says; nothing where there is none."""
    command = which("nvidia-smi")
    if not command:
        return ""
    ran = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    return ran.stdout.strip()
