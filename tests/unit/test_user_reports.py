"""What people report of tuners of these kernels, with their inputs: each kind of report is a test.

Several kinds are tested where the part that they concern is: writers of one file at once in ``test_engine_files``,
processes that hang, die or are poisoned in ``test_local_device``, kills in ``test_store``, whole runs in
``test_tune_run``, refusals in ``test_cli_refusals``.
"""

import datetime
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.engines import engine, engine_names
from blockscale.executor.base import DeviceClock, Done, Work
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.kernels import compile_only, launch
from blockscale.kernels.inputs import GemmInputs, make_inputs
from blockscale.kernels.reference import check, reference
from blockscale.measure import compile_cache, compile_worker
from blockscale.measure.compile_pool import CompileOptions, CompileRequest
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    OutDtype,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
    WeightShape,
)
from blockscale.recording import write_recording
from blockscale.space import build_space, shared_memory_bytes
from blockscale.store import Store
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

PROBLEM = Problem(GemmShape(16, 2112, 7168))
CONFIG = TileConfig(64, 128, 128, group_m=32)


def cuda(name: str, arch: str, shared: int) -> DeviceSpec:
    return replace(H200, name=name, arch=arch, shared_memory_bytes=shared)


L40 = cuda("NVIDIA L40", "sm_89", 101_376)
RTX_5090 = cuda("NVIDIA GeForce RTX 5090", "sm_120", 101_376)
A100 = cuda("NVIDIA A100-SXM4-80GB", "sm_80", 166_912)
A10 = cuda("NVIDIA A10", "sm_86", 101_376)
MI308X = replace(H200, name="AMD Instinct MI308X", vendor=Vendor.HIP, arch="gfx942", shared_memory_bytes=65_536)
SMALL = (L40, RTX_5090, MI308X)


# Results lost


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Compile a candidate where the compiler raises the given error."""

    def compile_one(error: Exception) -> compile_worker.CompileOutcome:
        def fail(*given: object) -> None:
            raise error

        monkeypatch.setattr(compile_only, "offline_target", lambda arch: None)
        monkeypatch.setattr(launch, "warm_up", fail)
        compiler = compile_worker.open_compiler(CompileOptions(tmp_path))
        return compiler(CompileRequest(H200, PROBLEM, Candidate(Kernel.FP8, CONFIG)))

    return compile_one


class PTXASError(Exception):
    """As Triton names it."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Pipeline failed while executing [`TritonGPURemoveLayoutConversions` on 'builtin.module']"),
        RuntimeError("PassManager::run failed"),
        PTXASError("`ptxas` stderr:\nptxas fatal   : (C7600) Unexpected error"),
        json.JSONDecodeError("Expecting value", "", 0),  # a stale compiler cache, also after it was mended
        RuntimeError("something that no version has said so far"),
    ],
)
def test_whatever_the_compiler_raises_is_one_candidates_status(compile_with, error: Exception) -> None:
    outcome = compile_with(error)
    assert outcome.status is TrialStatus.COMPILE_ERROR
    assert str(error).split("\n")[0].strip("`")[:10] in outcome.message


def test_a_full_disk_under_the_compilers_cache_is_not_blamed_on_the_candidate(compile_with) -> None:
    with pytest.raises(OSError, match="No space left"):
        compile_with(OSError(28, "No space left on device"))


def test_the_compilers_cache_is_ours_and_trimmed_to_a_bound(tmp_path: Path) -> None:
    used_at = time.time() - 2 * compile_cache.IN_USE_S
    for number in range(8):
        kernel = tmp_path / f"entry{number}" / "kernel.cubin"
        kernel.parent.mkdir()
        with kernel.open("wb") as file:
            file.truncate(2**30)  # 8 GiB in all that take no room
        os.utime(kernel, (used_at + number, used_at + number))
    compile_cache.prune(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["entry4", "entry5", "entry6", "entry7"]
    assert "blockscale" in compile_cache.default_cache_dir({}).parts


# Silently wrong


def ones_in_blocks_of_32() -> tuple[Problem, GemmInputs]:
    """One output of two groups of 32 products of ones, the first scaled by 1, the second by 8: 32 + 256 = 288."""
    problem = Problem(GemmShape(1, 32, 64), QuantScheme(QuantFormat.FP8, 32, 32), OutDtype.FLOAT32)
    ones = make_inputs(problem, "float8_e4m3fn", seed=0)
    a, b = torch.ones_like(ones.a, dtype=torch.float32), torch.ones_like(ones.b, dtype=torch.float32)
    scales = torch.tensor([[1.0, 8.0]]), torch.ones(1, 2)
    return problem, GemmInputs(a.to(ones.a.dtype), b.to(ones.b.dtype), *scales)


def test_64_where_288_is_right_fails_the_check() -> None:
    problem, inputs = ones_in_blocks_of_32()
    expected = reference(inputs, problem)
    assert expected.exact.unique().tolist() == [288.0]
    assert check(torch.full((1, 32), 288.0), expected, problem).ok
    assert check(torch.full((1, 32), 64.0), expected, problem).status is TrialStatus.WRONG_RESULT


def test_k_tiles_of_64_over_groups_of_32_are_neither_offered_nor_launched() -> None:
    problem, inputs = ones_in_blocks_of_32()
    wide = CONFIG.with_(block_n=32, block_k=64)
    for name in engine_names():
        for version in (None, "0.5.5", "main"):
            eng = engine(name, version)
            space = build_space(problem, H200, hopper=False, clauses=eng.clauses(problem, H200))
            assert {config.block_k for config in space} == {32}
            assert "does not divide" in str(space.reason(wide)) or "not block_k = 32" in str(space.reason(wide))
    for kernel in (Kernel.FP8, Kernel.FP8_MASKED, Kernel.FP8_UNROLLED_X4, Kernel.FP8_HOPPER):
        with pytest.raises(ValueError, match="does not divide"):
            launch.bind(problem, Candidate(kernel, wide), inputs, torch.empty(1, 32))


@pytest.mark.parametrize("block", [(64, 128), (128, 64)])
def test_an_activation_group_taken_from_block_n_fails_the_check(block: tuple[int, int]) -> None:
    problem = Problem(GemmShape(3, 256, 512), QuantScheme(QuantFormat.FP8, *block), OutDtype.FLOAT32)
    inputs = make_inputs(problem, "float8_e4m3fn", seed=1)
    block_n, block_k = block
    columns = torch.arange(512)
    group = (columns // block_n).clamp(max=inputs.a_scale.shape[1] - 1)
    a = inputs.a.double() * inputs.a_scale.double()[:, group]
    b_scale = inputs.b_scale.double().repeat_interleave(block_n, 0).repeat_interleave(block_k, 1)
    verdict = check((a @ (inputs.b.double() * b_scale).T).float(), reference(inputs, problem), problem)
    assert verdict.status is TrialStatus.WRONG_RESULT


@pytest.mark.parametrize(
    ("spec", "limit"), [(MI308X, 240.0), (replace(MI308X, arch="gfx950"), 448.0), (L40, 448.0), (H200, 448.0)]
)
def test_the_largest_fp8_number_is_that_of_the_devices_own_type(spec: DeviceSpec, limit: float) -> None:
    inputs = make_inputs(PROBLEM, spec.fp8_format, seed=1)
    assert torch.finfo(inputs.a.dtype).max == limit
    assert inputs.a.float().abs().max() == inputs.b.float().abs().max() == limit


# Does not fit


@pytest.mark.parametrize("name", engine_names())
@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.arch)
@pytest.mark.parametrize("block", [(128, 128), (256, 256), (32, 256), (64, 64)])
def test_the_default_is_clamped_to_what_the_device_holds(name: str, spec: DeviceSpec, block: tuple[int, int]) -> None:
    problem = Problem(PROBLEM.shape, QuantScheme(QuantFormat.FP8, *block))
    eng = engine(name)
    clamped = eng.clamped_default(problem, spec)
    assert shared_memory_bytes(problem.quant, clamped, spec) <= spec.shared_memory_bytes
    space = build_space(problem, spec, hopper=False, clauses=eng.clauses(problem, spec))
    assert space.reason(clamped) is None, "what would run otherwise can be measured and compared with"


def test_147456_bytes_on_a_device_of_101376_are_refused_with_both_numbers() -> None:
    too_large = CONFIG.with_(block_m=128, block_n=256, num_stages=4)
    assert shared_memory_bytes(PROBLEM.quant, too_large, L40) == 147_456
    reason = build_space(PROBLEM, L40, hopper=False).reason(too_large)
    assert "147456" in str(reason)
    assert "101376" in str(reason)


class AskedDevice:
    """Takes note of every candidate that it is asked to compile and run."""

    environment = Environment("x", "sm_89", "580", "2.11", "3.6", "hash", "0")

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self.asked: list[Candidate] = []
        self._waiting: deque[Work] = deque()

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Any problem will do."""

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        return True

    def start(self, work: Work, rank: int) -> None:
        self.asked += work.candidates
        self._waiting.append(work)

    def next_done(self) -> Done:
        work = self._waiting.popleft()
        times = {c: (float(c.config.block_m),) * 5 for c in work.candidates}
        trials = [Trial(work.problem, c, TrialStatus.OK, work.phase, times[c]) for c in work.candidates]
        return Done(work, tuple(trials))

    def clock(self) -> DeviceClock:
        return DeviceClock(recorded=True)

    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("search", ["auto", "random", "exhaustive"])
@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.arch)
def test_nothing_that_cannot_fit_is_ever_compiled(spec: DeviceSpec, search, tmp_path: Path) -> None:
    device = AskedDevice(spec)
    request = TuneRequest((WeightShape(2112, 7168),), (256,), (("sglang", tmp_path / "out"),), search=search)
    with Store.open(tmp_path / "s.db") as store:
        run_tune(request, [engine("sglang")], device, store, lambda event: None)
    configs = {candidate.config for candidate in device.asked}
    assert len(configs) > 25
    assert max(shared_memory_bytes(PROBLEM.quant, config, spec) for config in configs) <= spec.shared_memory_bytes
    assert engine("sglang").clamped_default(PROBLEM, spec).with_(group_m=1) in {c.with_(group_m=1) for c in configs}


@pytest.mark.parametrize("spec", [A100, A10], ids=lambda spec: spec.arch)
def test_fp8_on_a_gpu_without_it_is_refused_before_tuning_starts(
    spec: DeviceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = Environment(spec.name, spec.arch, "580", "2.11", "3.6", "hash", "0")
    candidate = Candidate(Kernel.FP8, CONFIG)
    trial = Trial(PROBLEM, candidate, TrialStatus.OK, samples_us=(1.0,))
    write_recording(tmp_path / "old.jsonl", spec, environment, [trial])
    sizes = ["--N", "2112", "--K", "7168", "--batch-sizes", "16"]
    assert main(["tune", *sizes, "--engine", "sglang", "--device", "recorded:old.jsonl", "--yes"]) == 2
    said = capsys.readouterr().err
    for part in (spec.name, spec.arch, "no FP8", "--input-type int8"):
        assert part in said
    assert said.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["old.jsonl"]


# Never read, or not found


@pytest.mark.parametrize("name", engine_names())
def test_a_file_is_named_after_the_whole_name_that_the_platform_reports(name: str) -> None:
    reported = ["NVIDIA H100 80GB HBM3", "NVIDIA H100", "AMD Instinct MI308X", "AMD Instinct MI308X HF", "MI308X"]
    names = [engine(name).file_name(WeightShape(2112, 7168), QuantScheme(), device) for device in reported]
    assert len(set(names)) == len(reported)
    assert "device_name=NVIDIA_H100_80GB_HBM3,dtype" in names[0]


# Slower than before


LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tune one weight with these options at the command line; the config file that it leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "open_devices", lambda *given: [AskedDevice(H200)])

    def run(*options: str) -> Path:
        sizes = ["--N", "2112", "--K", "7168", "--engine", "sglang", "--trials", "3", "--yes"]
        assert main(["tune", *sizes, "--save-path", "out", *options]) == 0
        (file,) = (tmp_path / "out").glob("N=*.json")
        return file

    return run


def test_decode_sizes_are_in_the_ladder_that_is_tuned_by_default(tuned) -> None:
    assert tuple(map(int, json.loads(tuned().read_text()))) == LADDER


def test_sizes_at_which_nothing_gains_are_in_the_file_too(tuned) -> None:
    sizes = ["--batch-sizes", "16", "512", "4096"]
    file = tuned(*sizes)
    first = json.loads(file.read_text())
    poor = {**first["512"], "BLOCK_SIZE_M": 256, "num_warps": 8, "num_stages": 2}
    file.write_text(json.dumps({"512": poor, "4096": first["4096"]}))
    again = json.loads(tuned(*sizes, "--store", "other.db").read_text())
    assert list(again) == ["16", "512", "4096"]
    assert again["512"] != poor
    assert again["4096"] == first["4096"], "nothing beats it"


# Too slow, or opaque


def test_provenance_can_be_rebuilt_from_the_sidecar(tuned) -> None:
    file = tuned("--batch-sizes", "16")
    (sidecar,) = (file.parent / ".blockscale").glob("*.meta.json")
    record = json.loads(sidecar.read_text())["16"]
    assert record["environment"]["driver"] == "580"
    assert record["environment"]["torch"] == "2.11"
    assert record["environment"]["triton"] == "3.6"
    assert datetime.date.fromisoformat(record["written"]) > datetime.date(2025, 1, 1)
    assert record["engine"]["name"] == "sglang"
    assert record["baseline"] == "engine default"
    assert len(record["samples_us"]) == 5
    assert "blockscale" in record
