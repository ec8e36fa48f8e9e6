"""Which configs each engine version takes, what it launches, and how its files are named."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.engines import Engine, engine, engine_names, sglang
from blockscale.engines.versions import parse_version
from blockscale.errors import InputError
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape
from blockscale.space import shared_memory_bytes

FP8 = QuantScheme()
INT8 = QuantScheme(QuantFormat.INT8)
PROBLEM = Problem(GemmShape(16, 2112, 7168))
PLAIN = TileConfig(64, 128, 128, 32, 4, 3)


def device(name: str, vendor: Vendor, arch: str, shared: int, units: int = 100) -> DeviceSpec:
    return DeviceSpec(name, vendor, arch, units, shared, 65_536, 1024, 32, 1 << 22, 1 << 35)


A100 = device("NVIDIA A100-SXM4-80GB", Vendor.CUDA, "sm_80", 166_912)
L40 = device("NVIDIA L40", Vendor.CUDA, "sm_89", 101_376)
B200 = device("NVIDIA B200", Vendor.CUDA, "sm_100", 232_448)
MI300X = device("AMD Instinct MI300X", Vendor.HIP, "gfx942", 65_536, units=304)
MI455X = device("AMD Instinct MI455X", Vendor.HIP, "gfx1250", 327_680)


def reasons(eng: Engine, config: TileConfig, spec: DeviceSpec, problem: Problem = PROBLEM) -> list[str]:
    found = (clause.check(problem, config) for clause in eng.clauses(problem, spec))
    return [reason for reason in found if reason is not None]


def test_versions_order_as_indexes_order_them() -> None:
    ordered = ["0.5.9", "0.5.15rc1", "0.5.15", "0.5.15.post1", "0.5.15.post2", "0.5.16.dev3+g1234", "0.5.16", "main"]
    assert sorted(["main", "0.5.16", *ordered[:-2]], key=parse_version) == ordered
    assert parse_version("0.27") == parse_version("0.27.0") == parse_version("v0.27.0+cu130")


@pytest.mark.parametrize(
    "text", ["newest", "", "1" * 5000, "1" + "a-" * 40 + "!", "1" + "1a" * 49 + "!", "../1", "²", "١.٢"]
)
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a version"):
        engine("sglang", text)


def test_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="sglang, vllm"):
        engine("trtllm")
    assert engine_names() == ("sglang", "vllm")


def test_file_names_differ_by_one_space() -> None:
    weight = WeightShape(2112, 7168)
    assert engine("sglang", "0.5.23").file_name(weight, FP8, "NVIDIA H200") == (
        "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    )
    assert engine("vllm", "0.33.0").file_name(weight, FP8, "NVIDIA H200") == (
        "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    assert "dtype=int8_w8a8,block_shape=[64, 32]" in engine("sglang").file_name(
        weight, QuantScheme(QuantFormat.INT8, 64, 32), "NVIDIA A100-SXM4-80GB"
    )


def test_slashes_and_runs_of_space_in_device_names() -> None:
    weight, odd = WeightShape(128, 128), "Radeon  890M / gfx1150"
    assert "device_name=Radeon_890M_gfx1150," in engine("vllm", "0.33.0").file_name(weight, FP8, odd)
    assert "device_name=Radeon__890M_/_gfx1150," in engine("vllm", "0.8.5").file_name(weight, FP8, odd)
    assert "device_name=Radeon__890M_/_gfx1150," in engine("sglang", "0.5.23").file_name(weight, FP8, odd)


def test_what_is_of_no_use_is_refused() -> None:
    assert engine("sglang").refusal(FP8, H200) is None
    assert engine("vllm").refusal(FP8, MI300X) is None
    assert "INT8" in (engine("vllm").refusal(INT8, H200) or "")
    assert "no FP8" in (engine("sglang").refusal(FP8, A100) or "")
    assert engine("sglang").refusal(INT8, A100) is None


@pytest.mark.parametrize(("name", "stages"), [("sglang", 3), ("vllm", 2)])
def test_defaults(name: str, stages: int) -> None:
    eng = engine(name)
    assert eng.default_config(PROBLEM, H200) == TileConfig(64, 128, 128, 32, 4, stages)
    small_blocks = Problem(GemmShape(1, 512, 512), QuantScheme(QuantFormat.FP8, 64, 32))
    assert eng.default_config(small_blocks, H200) == TileConfig(64, 64, 32, 32, 4, stages)


def test_the_default_is_clamped_to_the_device() -> None:
    small = device("small", Vendor.CUDA, "sm_90", 60_000)
    tiny = device("tiny", Vendor.CUDA, "sm_90", 9_000)
    eng = engine("sglang")
    assert eng.clamped_default(PROBLEM, H200) == eng.default_config(PROBLEM, H200)
    assert eng.clamped_default(PROBLEM, small) == PLAIN.with_(num_stages=2)
    clamped = eng.clamped_default(PROBLEM, tiny)
    assert shared_memory_bytes(PROBLEM.quant, clamped, tiny) <= 9_000
    assert clamped.block_k == 128
    for spec in (L40, MI300X):
        assert shared_memory_bytes(PROBLEM.quant, eng.clamped_default(PROBLEM, spec), spec) <= spec.shared_memory_bytes


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_k_tile_takes_one_scale(name: str) -> None:
    eng = engine(name, None)
    assert reasons(eng, PLAIN.with_(block_k=64), H200) == []
    assert "256 does not divide block_k = 128" in reasons(eng, PLAIN.with_(block_k=256), H200)[0]
    narrow = Problem(GemmShape(16, 512, 512), QuantScheme(QuantFormat.FP8, 32, 32))
    assert "64 does not divide block_k = 32" in reasons(eng, PLAIN.with_(block_k=64), H200, narrow)[0]


@pytest.mark.parametrize(
    ("version", "legal"),
    [
        ("0.5.5.post3", {32, 64, 128}),  # finds the scale by division
        ("0.5.6.post1", {128}),  # the first scale for all of K
        ("0.5.9", {128}),
        ("0.5.10", {32, 64, 128}),
        ("0.5.23", {32, 64, 128}),
        ("main", {32, 64, 128}),
    ],
)
def test_sglang_versions_that_read_wrong_scales_refuse_small_k_tiles(version: str, legal: set[int]) -> None:
    eng = engine("sglang", version)
    assert {bk for bk in (32, 64, 128, 256) if not reasons(eng, PLAIN.with_(block_k=bk), H200)} == legal
    int8 = Problem(PROBLEM.shape, INT8)
    assert not reasons(eng, PLAIN.with_(block_k=64), H200, int8)


def test_on_rocm_the_config_that_is_tuned_is_the_one_that_runs() -> None:
    eng, small = engine("sglang", "0.5.23"), PLAIN.with_(block_k=64)
    assert eng.effective_config(PROBLEM, small, MI300X) == PLAIN
    assert "loader" in reasons(eng, small, MI300X)[0]
    assert reasons(eng, PLAIN, MI300X) == []
    assert eng.effective_config(PROBLEM, small, H200) == small
    int8 = Problem(PROBLEM.shape, INT8)
    assert eng.effective_config(int8, small, MI300X) == small
    assert reasons(eng, small, MI300X, int8) == []
    for config in (small, PLAIN):
        assert engine("sglang", "0.5.11").effective_config(PROBLEM, config, MI300X) == config
        assert engine("vllm").effective_config(PROBLEM, config, MI300X) == config


def test_gfx1250_runs_one_stage() -> None:
    assert engine("sglang", "0.5.23").default_config(PROBLEM, MI455X).num_stages == 1
    assert engine("sglang", "0.5.18").default_config(PROBLEM, MI455X).num_stages == 3


SWAPPED = PLAIN.with_(swap_ab=True)
SPLIT = PLAIN.with_(split_k=4)


def test_swap_and_split_only_where_they_are_taken() -> None:
    new, old = engine("sglang", "0.5.21"), engine("sglang", "0.5.20")
    for config in (SWAPPED, SPLIT):
        assert new.takes_swap_split(H200)
        assert reasons(new, config, H200) == []
        assert new.kernel_for(PROBLEM, config, H200) is Kernel.FP8_HOPPER
        for eng, spec in ((old, H200), (new, B200), (new, L40), (engine("vllm"), H200)):
            assert not eng.takes_swap_split(spec)
            assert "SWAP_AB" in reasons(eng, config, spec)[0] or "SPLIT_K" in reasons(eng, config, spec)[0]
        assert reasons(new, config, H200, Problem(PROBLEM.shape, INT8))
    assert "power of two" in reasons(new, PLAIN.with_(split_k=3), H200)[0]


def test_partial_sums_beyond_32_bit_offsets_are_illegal() -> None:
    huge = Problem(GemmShape(8192, 36864, 7168))
    eng = engine("sglang")
    assert "32-bit" in reasons(eng, PLAIN.with_(split_k=16), H200, huge)[0]
    assert reasons(eng, PLAIN.with_(split_k=4), H200, huge) == []


def test_entries_hold_only_fields_that_the_version_takes() -> None:
    assert list(engine("vllm").entry(PLAIN)) == [
        "BLOCK_SIZE_M",
        "BLOCK_SIZE_N",
        "BLOCK_SIZE_K",
        "GROUP_SIZE_M",
        "num_warps",
        "num_stages",
    ]
    assert engine("sglang", "0.5.23").entry(SWAPPED.with_(split_k=2))["SPLIT_K"] == 2
    for eng in (engine("vllm"), engine("sglang", "0.5.20")):
        assert "SPLIT_K" not in eng.entry(PLAIN)
        for config in (SWAPPED, SPLIT):
            with pytest.raises(InputError, match=r"SWAP_AB|SPLIT_K"):
                eng.entry(config)


def test_compiler_options_of_another_vendor_are_illegal() -> None:
    amd = PLAIN.with_(waves_per_eu=2)
    for name in ("sglang", "vllm"):
        assert "waves_per_eu" in reasons(engine(name), amd, H200)[0]
        assert reasons(engine(name), amd, MI300X) == []
        assert "grf_mode" in reasons(engine(name), PLAIN.with_(extra=(("grf_mode", '"256"'),)), H200)[0]


def test_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    int8 = Problem(PROBLEM.shape, INT8)
    eng = engine("sglang", "0.5.23")
    assert eng.kernel_for(PROBLEM, PLAIN, H200) is Kernel.FP8
    assert eng.kernel_for(int8, SWAPPED, H200) is Kernel.INT8
    assert eng.kernel_for(PROBLEM, PLAIN, MI300X) is Kernel.FP8
    assert engine("vllm").kernel_for(PROBLEM, PLAIN, H200) is Kernel.FP8_MASKED
    # 17 tiles at M = 16, 1,088 at M = 4096, on 304 compute units.
    monkeypatch.setattr(sglang, "FIRST_DISPATCHING_UNROLLED", "0.5.24")
    fixed = engine("sglang", "0.5.24")
    assert fixed.kernel_for(PROBLEM, PLAIN, MI300X) is Kernel.FP8_UNROLLED_X4
    assert fixed.kernel_for(Problem(GemmShape(4096, 2112, 7168)), PLAIN, MI300X) is Kernel.FP8
    assert fixed.kernel_for(PROBLEM, PLAIN, H200) is Kernel.FP8
    assert eng.kernel_for(PROBLEM, PLAIN, MI300X) is Kernel.FP8
    for units, kernel in ((17, Kernel.FP8_UNROLLED_X4), (16, Kernel.FP8)):  # no larger than the number of units
        assert fixed.kernel_for(PROBLEM, PLAIN, replace(MI300X, compute_units=units)) is kernel


def test_ties_go_to_the_first_key_in_file_order() -> None:
    eng = engine("sglang")
    assert eng.lookup_key([48, 96], 72) == 48
    assert eng.lookup_key([96, 48], 72) == 96
    assert eng.lookup_key([2048, 3072, 4096], 1) == 2048


def test_notes_say_who_reads_the_file_and_what_to_do() -> None:
    on_hopper = " ".join(engine("sglang").backend_note(H200, FP8))
    for words in ("--fp8-gemm-backend triton", "DeepGEMM", "M ≥ 128", "restart", "MoE tuner"):
        assert words in on_hopper
    assert "--linear-backend triton" in " ".join(engine("vllm").backend_note(H200, FP8))
    assert "AITER" in " ".join(engine("vllm").backend_note(MI300X, FP8))
    assert "DeepGEMM" not in " ".join(engine("sglang").backend_note(H200, INT8))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("sglang", "vllm")]:
        del sys.modules[name]


def install(site: Path, name: str, version: str, loader: str) -> Path:
    module = site / name / loader
    (module.parent / "configs").mkdir(parents=True)
    module.write_text("")
    # Importing the package would fail: finding it must not.
    (site / name / "__init__.py").write_text("raise RuntimeError('imported')")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return module.parent / "configs"


@pytest.mark.parametrize(
    ("name", "version", "loader"),
    [
        ("sglang", "0.5.22", "kernels/ops/gemm/fp8_kernel.py"),
        ("sglang", "0.5.17", "kernels/ops/quantization/fp8_kernel.py"),
        ("sglang", "0.5.12", "srt/layers/quantization/fp8_kernel.py"),
        ("vllm", "0.30.0", "model_executor/layers/quantization/utils/fp8_utils.py"),
    ],
)
def test_an_installed_engine_is_found_without_importing_it(site: Path, name: str, version: str, loader: str) -> None:
    configs = install(site, name, version, loader)
    eng = engine(name)
    found = eng.installed()
    assert found is not None
    assert (found.version, found.config_folder) == (version, configs)
    assert eng.version == version
    assert name not in sys.modules
    weight = WeightShape(512, 7168)
    assert eng.shipped_file(weight, FP8, "NVIDIA H200") is None
    path = configs / eng.file_name(weight, FP8, "NVIDIA H200")
    path.write_text("{}")
    assert eng.shipped_file(weight, FP8, "NVIDIA H200") == path


def test_without_the_engine_its_newest_known_version_is_assumed() -> None:
    assert engine("sglang").version == "0.5.23"
    assert engine("vllm").version == "0.33.0"
    assert engine("sglang").installed() is None
    assert engine("sglang").shipped_file(WeightShape(1, 1), FP8, "NVIDIA H200") is None


@pytest.mark.parametrize(
    ("name", "version", "loader", "other_spelling"),
    [
        ("sglang", "0.5.23", "kernels/ops/gemm/fp8_kernel.py", "block_shape=[128,128]"),
        ("vllm", "0.33.0", "model_executor/layers/quantization/utils/fp8_utils.py", "block_shape=[128, 128]"),
    ],
)
def test_shipped_weights_are_those_whose_files_the_installed_engine_finds(
    site: Path, name: str, version: str, loader: str, other_spelling: str
) -> None:
    configs = install(site, name, version, loader)
    eng = engine(name)
    there, misspelt, of_another_gpu, missing = (WeightShape(n, 7168) for n in (512, 576, 1536, 2112))
    (configs / eng.file_name(there, FP8, "NVIDIA H200")).write_text("{}")
    own_spelling = eng.file_name(misspelt, FP8, "NVIDIA H200")
    (configs / re.sub(r"block_shape=\[.*\]", other_spelling, own_spelling)).write_text("{}")
    (configs / eng.file_name(of_another_gpu, FP8, "NVIDIA H20")).write_text("{}")
    shipped = eng.shipped_weights([there, misspelt, of_another_gpu, missing], FP8, "NVIDIA H200")
    assert shipped == {there: configs / eng.file_name(there, FP8, "NVIDIA H200")}
    assert eng.shipped_weights([there], QuantScheme(QuantFormat.FP8, 64, 64), "NVIDIA H200") == {}


def test_what_ships_is_not_known_where_no_engine_or_no_loader_is_found(site: Path) -> None:
    assert engine("sglang").shipped_weights([WeightShape(512, 7168)], FP8, "NVIDIA H200") is None
    install(site, "vllm", "0.99.0", "somewhere/else.py")
    assert engine("vllm").shipped_weights([WeightShape(512, 7168)], FP8, "NVIDIA H200") is None
