"""The scripts install the right torch, once, on any machine, and measure what they say they do.

Where they install, pip and Python are stood in for.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench
import full_size
import pytest
import torch
from bench_parts import cold, shares
from bench_parts.record import Span, covered
from drawings import difference, write_map
from full_size import Parts, Shape, TextShape
from packaging.requirements import Requirement
from PIL import Image
from stories import load_story

from comicgen.diffusion.engine import DiffusionEngine
from comicgen.environment import current
from comicgen.outputs import Outputs
from comicgen.plan import Memory, plan
from comicgen.render import render
from comicgen.sizes import Size

ROOT = Path(__file__).parent.parent
SCRIPTS = [ROOT / "scripts" / name for name in ("install", "demo", "test", "check")]
DRIVER = Path("/proc/driver/nvidia/version")
WITHOUT_DRIVER = pytest.mark.skipif(DRIVER.exists(), reason="this machine has an NVIDIA driver")

PYTHON = """#!/bin/sh
case "$*" in
*ensurepip*) exit "${UNSUITED:-0}" ;;
*importlib.metadata*) exit "${TORCH_ABSENT:-1}" ;;
*urllib*) exit "${UNREACHABLE:-0}" ;;
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "venv" >>calls ;;
*"-m pip --version"*) exit 0 ;;
*) echo "$*" >>calls && exit "${FAILS:-0}" ;;
esac
"""
PIP = "-m pip install -qq --disable-pip-version-check"
ITSELF, WITH_DEV = f"{PIP} -e .", f"{PIP} -e .[dev]"
TORCH = f"{PIP} torch==2.13.0"
CPU_TORCH = f"{TORCH} --extra-index-url https://download.pytorch.org/whl/cpu"


@dataclass
class Machine:
    """A clone on a machine where Python, pip and nvidia-smi only write down what was asked."""

    clone: Path
    bin: Path

    def command(self, name: str, content: str) -> None:
        (self.bin / name).write_text(content)
        (self.bin / name).chmod(0o755)

    def run(
        self, script: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        (self.clone / "calls").unlink(missing_ok=True)
        return subprocess.run(
            [self.clone / "scripts" / script, *arguments],
            env={"PATH": f"{self.bin}:/usr/bin:/bin", **(env or {})},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        file = self.clone / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "a clone", tmp_path / "bin")
    shutil.copytree(ROOT / "scripts", machine.clone / "scripts")
    shutil.copy(ROOT / "pyproject.toml", machine.clone)
    machine.bin.mkdir()
    for name in ("python3.12", "python3.11", "python3"):
        machine.command(name, PYTHON)
    return machine


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_script_is_executable_and_bash_can_read_it(script: Path) -> None:
    read = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)

    assert (read.returncode, read.stderr) == (0, "")
    assert os.access(script, os.X_OK)


@WITHOUT_DRIVER
def test_without_a_driver_the_cpu_build_is_taken(machine: Machine) -> None:
    done = machine.run("install")

    assert done.returncode == 0
    assert machine.calls == ["venv", CPU_TORCH, ITSELF]


@WITHOUT_DRIVER
def test_where_the_cpu_builds_cannot_be_reached_the_same_version_is_taken_as_it_comes(
    machine: Machine,
) -> None:
    done = machine.run("install", "dev", env={"UNREACHABLE": "1"})

    assert machine.calls == ["venv", TORCH, WITH_DEV]
    assert "https://download.pytorch.org/whl/cpu does not answer" in done.stderr


def test_with_a_driver_pip_chooses_torch(machine: Machine) -> None:
    machine.command("nvidia-smi", "#!/bin/sh\necho 'GPU 0: one'\n")
    machine.run("install")

    assert machine.calls == ["venv", ITSELF]


@WITHOUT_DRIVER
def test_nvidia_smi_that_finds_no_gpu_is_no_driver(machine: Machine) -> None:
    machine.command("nvidia-smi", "#!/bin/sh\nexit 9\n")
    machine.run("install")

    assert CPU_TORCH in machine.calls


def test_nothing_is_done_again_until_pyproject_changes(machine: Machine) -> None:
    machine.run("install", "dev")
    again = machine.run("install", "dev")
    calls_again = machine.calls
    machine.run("install")
    calls_without_dev = machine.calls
    with (machine.clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    machine.run("install", "dev", env={"TORCH_ABSENT": "0"})

    assert (again.stdout, again.stderr, calls_again, calls_without_dev) == ("", "", [], [])
    assert machine.calls == [WITH_DEV]


def test_dev_is_added_to_an_installation_without_it(machine: Machine) -> None:
    machine.run("install")
    machine.run("install", "dev", env={"TORCH_ABSENT": "0"})

    assert machine.calls == [WITH_DEV]


def test_a_clone_that_was_moved_is_installed_again(machine: Machine) -> None:
    machine.run("install")
    machine.clone = machine.clone.rename(machine.clone.parent / "moved")
    machine.run("install", env={"TORCH_ABSENT": "0"})

    assert machine.calls == [ITSELF]


def test_an_installation_that_failed_is_tried_again(machine: Machine) -> None:
    failed = machine.run("install", env={"FAILS": "3"})
    machine.run("install", env={"TORCH_ABSENT": "0"})

    assert failed.returncode == 3
    assert machine.calls == [ITSELF]


def test_without_a_suited_python_it_says_what_to_install(machine: Machine) -> None:
    failed = machine.run("install", env={"UNSUITED": "1"})

    assert failed.returncode == 1
    assert "comicgen needs Python 3.11 or 3.12" in failed.stderr
    assert "apt install python3-venv" in failed.stderr
    assert machine.calls == []


@WITHOUT_DRIVER
def test_tests_are_run_with_the_arguments_given(machine: Machine) -> None:
    failed = (
        machine.run("install", "dev"),
        machine.run("test", "-k", "two words", env={"FAILS": "5"}),
    )

    assert [one.returncode for one in failed] == [0, 5]
    assert machine.calls == ["-m pytest -n 2 --dist worksteal -k two words"]


def test_check_looks_at_style_layout_and_types(machine: Machine) -> None:
    machine.run("install", "dev")
    machine.run("check")

    assert machine.calls == ["-m ruff check", "-m ruff format --check", "-m mypy"]


def test_the_demo_draws_and_says_where(machine: Machine) -> None:
    machine.run("install")
    command = machine.clone / ".venv" / "bin" / "comicgen"
    command.write_text('#!/bin/sh\necho "comicgen $*" >>calls\n')
    command.chmod(0o755)
    done = machine.run("demo")

    assert machine.calls == ["comicgen render storyboards/demo.yaml"]
    assert str(machine.clone / "outputs" / "demo") in done.stderr


def test_the_version_taken_is_one_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(line).name: Requirement(line) for line in project["dependencies"]}

    assert TORCH.rpartition("==")[2] in wanted["torch"].specifier


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A folder as of a full-size model, of another size."""
    shape = Shape(
        sample_size=32,
        channels=(32, 64, 64),
        heads=(1, 2, 2),
        transformers=(1, 1, 1),
        layers=1,
        number_width=32,
        vae_channels=(32, 32, 64, 64),
        text=TextShape(32, 2, 2, "quick_gelu"),
        text_2=TextShape(64, 2, 2, "gelu"),
    )
    return full_size.write(tmp_path_factory.mktemp("small"), torch.device("cpu"), shape)


def test_a_written_model_draws_and_every_input_moves_its_pictures(
    tmp_path: Path, small: Parts
) -> None:
    write_map(tmp_path / "map.png", Size(96, 64))
    storyboard = load_story(
        tmp_path,
        f"""
        model: {small.model}
        defaults: {{size: 96x64, steps: 2, guidance: 5, candidates: 1}}
        panels:
          - {{id: plain, prompt: a fox on a beach, seed: 1}}
          - {{id: words, prompt: a wizard in a library, seed: 1}}
          - {{id: lora, prompt: a fox on a beach, seed: 1, loras: [{{file: {small.loras[3]}}}]}}
          - id: control
            prompt: a fox on a beach
            seed: 1
            control: {{model: {small.controlnet}, image: map.png}}
        """,
    )
    environment = current("cpu", None)
    engine = DiffusionEngine.open(storyboard.model, environment)
    with Outputs.open(tmp_path / "out", storyboard, environment) as outputs:
        render(plan(storyboard, Memory()), engine, outputs, lambda event: None)

    pictures = {
        panel.id: Image.open(tmp_path / "out" / panel.id / f"{panel.id}-c01.png")
        for panel in storyboard.panels
    }
    plain = pictures.pop("plain")
    gaps = {id: difference(picture, plain).mean for id, picture in pictures.items()}
    assert {id: gap for id, gap in gaps.items() if gap < 0.2} == {}


@pytest.mark.filterwarnings("ignore::FutureWarning:diffusers")
def test_the_benchmark_draws_with_both_arms_and_answers_in_json(
    tmp_path: Path,
    small: Parts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "bench.json"
    quick = ["--model", str(small.model.parent), "--device", "cpu", "--size", "96x64"]
    quick += ["--steps", "2", "--rounds", "1", "--panels", "2"]
    quick += ["--pictures", "1", "--pictures", "3"]
    bench.main(["steps", "pieces", "single", "story", *quick, "--json", str(file)])

    told = capsys.readouterr()
    results = json.loads(told.out)
    single, story = results["single"], results["story"]
    assert results == json.loads(file.read_text())
    assert "story    theirs / ours" in told.err
    assert [*results] == ["steps", "pieces", "single", "story"]
    assert all({"machine", "setting"} <= results[part].keys() for part in results)
    assert [each["pictures"] for each in results["steps"]["steps"]] == [1, 3] * 2
    assert results["pieces"]["LoRA"].keys() == {"read", "switch", "switch, ms"}
    assert single["seconds"]["value"] == single["ours"]["median"]
    ours, theirs = (story[arm][0]["seconds"] for arm in ("ours", "theirs"))
    assert story["theirs / ours"]["value"] == pytest.approx(theirs / ours, rel=0.01)
    assert max(single["difference"], story["difference"]) < 0.1
    assert story["with ControlNet"] == 1
    assert [trial["loras"] for trial in story["LoRAs of theirs"]] == [["a at 0.8"]]
    assert story["ours"][0]["batches"] == {"1 x 96x64": 4, "1 x 96x64, control": 4}
    assert story["theirs"][0]["seconds"] > story["theirs"][0]["drawing"] > 0


def test_the_benchmark_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the file is kept, unless it is named; a figure that missed ends it with 1."""
    measured: list[str] = []

    def part(name: str, met: bool) -> Any:
        def measure(setting: Any) -> dict[str, Any]:
            measured.append(name)
            if name == "second" and measured.count(name) == 1:
                raise KeyboardInterrupt
            return {"some": {"value": 1.0, "floor": 2.0, "met": met}}

        return measure

    parts = {name: part(name, name != "third") for name in ("first", "second", "third")}
    monkeypatch.setattr(bench, "PARTS", parts)
    quick = ["--model", "pocket", "--device", "cpu", "--json", str(tmp_path / "bench.json")]
    with pytest.raises(KeyboardInterrupt):
        bench.main(quick)
    assert bench.main(quick) == 1
    assert measured == ["first", "second", "second", "third"]
    assert bench.main(["first", *quick]) == 1
    assert measured[4:] == ["first"]
    with pytest.raises(SystemExit, match="measured otherwise"):
        bench.main([*quick, "--steps", "3"])


def test_the_benchmark_names_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["singel"])

    told = capsys.readouterr().err
    assert f"no part is called singel; there are {', '.join(bench.PARTS)}" in " ".join(told.split())


def test_what_torch_compile_did_in_its_time_counts_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that crashed counts for nothing, and ours is measured once for all tries."""
    setting, seen, own = SimpleNamespace(kept=tmp_path / "kept"), list[bool](), list[str]()
    first, steady = {cold.FIRST: 5.0}, {"theirs": {"median": 3.0}, "ours": {"median": 2.0}}
    tries = [
        {"ended": cold.UNFINISHED},
        {**first, "ended": cold.UNFINISHED},
        {cold.FIRST: 1.0, **steady},
        {"ended": "with 1"},
        {**first, **steady},
    ]

    def command(_: object, caches: Path) -> dict[str, Any]:
        own.append(caches.name)
        return {cold.FIRST: 2.0}

    def child(arm: str, _: object, caches: Path, limit: float | None = None) -> dict[str, Any]:
        seen.append((caches / "compiled").exists())
        (caches / "compiled").touch()
        assert (arm, limit) == ("max-autotune", cold.LIMIT)
        return dict(tries[len(seen) - 1])

    monkeypatch.setattr(cold, "_command", command)
    monkeypatch.setattr(cold, "_child", child)
    told = [cold.measure_tuned(setting) for _ in tries]

    late = cold.LIMIT + 5
    assert [each["theirs"].get(cold.FIRST) for each in told] == [None, late, late, None, 5]
    assert [len(each["tries"]) for each in told] == [1, 2, 2, 0, 0]
    assert [each.get("steady", {}).get("value") for each in told] == [None, None, 1.5, None, 1.5]
    assert told[-1]["to the first"]["value"] == 2.5
    assert seen == [False, True, True, False, False]
    assert len(own) == 3
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_was_compiled_before_a_kill_is_not_taken_for_a_cold_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "max-autotune").mkdir()
    (tmp_path / "max-autotune" / "compiled").touch()

    def child(arm: str, _: object, caches: Path, limit: float | None = None) -> dict[str, Any]:
        assert not (caches / "compiled").exists()
        return {cold.FIRST: 1.0}

    monkeypatch.setattr(cold, "_command", lambda setting, caches: {cold.FIRST: 2.0})
    monkeypatch.setattr(cold, "_child", child)
    assert cold.measure_tuned(SimpleNamespace(kept=tmp_path))["theirs"] == {cold.FIRST: 1.0}


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("exit 0", {"first": 2}),
        ("kill -SEGV $$", {"first": 2, "ended": "with -11"}),
        ("sleep 60", {"first": 2, "ended": cold.UNFINISHED}),
        ("""printf '{"first": 3'; sleep 60""", {"first": 2, "ended": cold.UNFINISHED}),
    ],
)
def test_what_a_process_told_before_it_ended_is_kept(
    ends: str, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    lines = """echo '{"first": 1}'; echo notes; echo '{"first": 2}'"""
    python.write_text(f"#!/bin/sh\ncat >/dev/null\n{lines}\n{ends}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    assert cold._child("max-autotune", "setting", tmp_path, limit=2.0) == told
    assert cold._child("ours", "setting", tmp_path, limit=2.0) == told


def test_a_record_tells_how_long_a_gpu_was_busy_and_the_gaps() -> None:
    moments = [(5, 9), (6, 7), (9, 12), (20, 24), (21, 30), (34, 35)]

    busy, gaps = covered(Span(*moment, "a kernel") for moment in moments)

    assert busy == 7 + 10 + 1
    assert gaps == [8, 4]


def test_a_kernel_is_told_by_its_name() -> None:
    names = {
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16": "attention",
        "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": (
            "convolutions"
        ),
        "nvjet_sm90_hsh_256x128_64x4_2x1_v_bz_coopA_bias_TNT": "products",
        "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64": "products",
        "_layer_norm": "our kernels",
        "Memcpy DtoH (Device -> Pinned)": "copies",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": (
            "torch's other kernels"
        ),
    }

    assert {name: shares.kind_of(name) for name in names} == names
