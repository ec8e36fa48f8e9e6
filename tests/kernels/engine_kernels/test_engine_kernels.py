"""An installed engine's own kernels: found by contract, launched in place of ours, and refused where they changed."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import (
    HELPERS,
    IMPORTS,
    INDIRECT_IMPORTS,
    MASKING,
    OPERANDS,
    REDUCTION,
    SGLANG_MODULE,
    TILE,
    gemm,
    sglang_module,
)

from blockscale.engines import engine
from blockscale.engines.kernels import KernelChoice, choose_kernels, kernels_of
from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.kernels.foreign import load_function
from blockscale.kernels.installed import OWN, KernelSource, find_kernels
from blockscale.measure.child import ChildRaisedError
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest, PoolSettings, compile_key
from blockscale.measure.describe import environment, method_hash
from blockscale.measure.process import start_error
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, QuantFormat, TileConfig, TrialStatus

FP8, INT8 = QuantFormat.FP8, QuantFormat.INT8


def source_of(name: str, version: str, quant_format: QuantFormat = FP8) -> KernelSource:
    return KernelSource((kernels_of(engine(name, version), quant_format),))


SGLANG = source_of("sglang", "0.5.23")
VLLM_MODULE = "model_executor/layers/quantization/utils/fp8_utils.py"
GENERIC = "_w8a8_block_fp8_matmul"
WAIT_S = 120.0


def sglang_source(text: str) -> dict[str, str]:
    return {SGLANG_MODULE: text}


def module_of(name: str, constants: tuple[str, ...]) -> str:
    return IMPORTS + HELPERS + gemm(name, constants)


@pytest.mark.parametrize(
    ("name", "version", "quant", "module", "functions", "constants"),
    [
        ("sglang", "0.5.5", FP8, "srt/layers/quantization/fp8_kernel.py", {GENERIC}, TILE),
        ("sglang", "0.5.9", FP8, "srt/layers/quantization/fp8_kernel.py", {GENERIC}, MASKING),
        ("sglang", "0.5.12", FP8, "srt/layers/quantization/fp8_kernel.py", {GENERIC}, MASKING),
        ("sglang", "0.5.18", FP8, "kernels/ops/quantization/fp8_kernel.py", {GENERIC}, MASKING),
        ("sglang", "0.5.20", FP8, "kernels/ops/quantization/fp8_kernel.py", {GENERIC, f"{GENERIC}_gfx1250"}, MASKING),
        ("sglang", "0.5.12", INT8, "srt/layers/quantization/int8_kernel.py", {"_w8a8_block_int8_matmul"}, TILE),
        ("sglang", "0.5.23", INT8, "kernels/ops/gemm/int8_kernel.py", {"_w8a8_block_int8_matmul"}, TILE),
        ("vllm", "0.11.0", FP8, VLLM_MODULE, {GENERIC}, TILE),
        ("vllm", "0.27.0", FP8, VLLM_MODULE, {"_w8a8_triton_block_scaled_mm"}, TILE),
        ("vllm", "0.33.0", FP8, VLLM_MODULE, {"_w8a8_triton_block_scaled_mm"}, TILE),
    ],
)
def test_the_kernels_of_a_version_are_found_where_it_has_them(
    install, name, version, quant, module, functions, constants
):
    install(name, version, {module: INDIRECT_IMPORTS + HELPERS + "".join(gemm(f, constants) for f in functions)})
    source, notes = choose_kernels(KernelChoice.AUTO, [engine(name, version)], quant)
    assert (source, notes) == (source_of(name, version, quant), [])
    found = find_kernels(source)
    assert {kernel.gemm.taken.name for kernel in found} == functions
    assert all(kernel.gemm.file.match(module) for kernel in found)
    assert name not in sys.modules


def test_the_newest_sglang_has_a_kernel_for_hopper_and_a_reduction(install):
    install("sglang", "0.5.23", sglang_source(sglang_module(INDIRECT_IMPORTS)))
    found = {(kernel.kernel, kernel.arch): kernel for kernel in find_kernels(SGLANG)}
    assert set(found) == {(Kernel.FP8, None), (Kernel.FP8, "gfx1250"), (Kernel.FP8_HOPPER, None)}
    hopper = found[Kernel.FP8_HOPPER, None]
    assert hopper.gemm.taken.arguments[-3:] == ("needs_masking", "SWAP_AB", "SPLIT_K")
    assert hopper.reduction is not None
    assert hopper.reduction.taken.name == "_reduce_block_fp8_split_k"


def test_without_an_engine_our_own_kernels_are_timed():
    engines = [engine("sglang", "0.5.23"), engine("vllm", "0.33.0")]
    source, notes = choose_kernels(KernelChoice.AUTO, engines, FP8)
    assert source == OWN
    assert [note.count("is not installed here") for note in notes] == [1, 1]
    assert choose_kernels(KernelChoice.OWN, engines, FP8) == (OWN, [])
    with pytest.raises(
        InputError, match=r"sglang 0\.5\.23 cannot be timed: sglang is not installed here.*--kernels own"
    ):
        choose_kernels(KernelChoice.ENGINE, engines, FP8)


def test_an_engine_without_a_kernel_for_the_format_has_nothing_to_say():
    assert choose_kernels(KernelChoice.ENGINE, [engine("vllm", "0.33.0")], INT8) == (OWN, [])


def test_our_own_kernels_are_timed_where_the_person_says_so(install):
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    assert choose_kernels(KernelChoice.OWN, [engine("sglang", "0.5.23")], FP8) == (OWN, [])
    both = [engine("sglang", "0.5.23"), engine("vllm", "0.33.0")]
    source, notes = choose_kernels(KernelChoice.AUTO, both, FP8)
    assert source == SGLANG
    assert len(notes) == 1
    assert "vllm 0.33.0" in notes[0]


def test_a_version_that_is_not_the_installed_one_is_tuned_on_our_kernel(install):
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    source, notes = choose_kernels(KernelChoice.AUTO, [engine("sglang", "0.5.20")], FP8)
    assert source == OWN
    assert notes == [
        "blockscale's own kernel is timed, which stands for that of sglang 0.5.20: sglang is installed here as 0.5.23."
    ]


def replaced(old: str, new: str) -> dict[str, str]:
    text = sglang_module()
    assert old in text
    return sglang_source(text.replace(old, new))


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ({"srt/elsewhere.py": sglang_module()}, "there is no such module"),
        (replaced(f"def {GENERIC}(", "def _renamed("), "its module has no such function"),
        (sglang_source(IMPORTS + HELPERS + f"if True:\n    def {GENERIC}(): pass\n"), "no such function"),
        (sglang_source(f"{GENERIC} = None\n"), "no such function"),
        (sglang_source("def broken(:\n"), "its module cannot be read"),
        (sglang_source(f"deep = {'-' * 200_000}1\n"), "nested too deeply"),
        (sglang_source(module_of(GENERIC, TILE)), "it does not take needs_masking"),
        (sglang_source(module_of(GENERIC, (*MASKING, "USE_TMA"))), "it takes USE_TMA besides"),
        (sglang_source(module_of(GENERIC, (*TILE, "masking"))), "masking besides and does not take needs_masking"),
        (sglang_source(module_of(GENERIC, (*reversed(TILE), "needs_masking"))), "in another order"),
        (
            sglang_source(IMPORTS + HELPERS + gemm(GENERIC, MASKING, OPERANDS.replace("M, N, K", "N, M, K"))),
            "in another order",
        ),
        (replaced("def _scaled", "def _other"), "it needs _scaled, which its module does not define at its top"),
        (replaced("@triton.jit\ndef _scaled", "def _scaled"), "_scaled is no plain @triton.jit function"),
        (replaced("tl.constexpr(0.0)", "float('0')"), "it needs NOTHING, which is no constant"),
        (replaced("NOTHING = tl.constexpr(0.0)", "from sglang.no import NOTHING"), "it needs NOTHING of sglang.no"),
        (replaced("NOTHING = tl.constexpr(0.0)", "import NOTHING"), "it needs the module NOTHING"),
        (replaced("NOTHING = tl.constexpr(0.0)", "class NOTHING: pass"), "NOTHING, which is neither"),
        (
            replaced(f"@triton.jit\ndef {GENERIC}(", f"@triton.autotune([], [])\n@triton.jit\ndef {GENERIC}("),
            f"{GENERIC} is no plain @triton.jit function",
        ),
        (replaced(REDUCTION, ""), "its module has no such function"),
    ],
)  # fmt: skip
def test_a_release_that_moved_or_changed_its_kernel_is_named_and_ours_is_timed(install, modules, says):
    install("sglang", "0.5.23", modules)
    source, notes = choose_kernels(KernelChoice.AUTO, [engine("sglang", "0.5.23")], FP8)
    assert source == OWN
    assert len(notes) == 1
    for part in ("sglang 0.5.23", f"sglang/{SGLANG_MODULE}", says):
        assert part in notes[0]
    with pytest.raises(InputError) as refused:
        choose_kernels(KernelChoice.ENGINE, [engine("sglang", "0.5.23")], FP8)
    assert says in str(refused.value)
    assert "--kernels own" in str(refused.value)


def kernel_hash(source: KernelSource) -> str:
    return environment(H200, find_kernels(source), str(source)).kernel_hash


def test_times_of_an_engines_kernel_and_of_ours_are_of_two_environments(install):
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    theirs = environment(H200, find_kernels(SGLANG), str(SGLANG))
    ours = environment(H200)
    assert ours.kernel_hash == method_hash()
    assert theirs.kernel_hash.startswith(f"{method_hash()}+sglang:")
    assert theirs.key != ours.key
    assert dict(theirs.details)["kernels"] == "sglang 0.5.23"
    assert dict(ours.details)["kernels"] == "blockscale"


@pytest.mark.parametrize(
    ("version", "text", "same"),
    [
        ("0.5.23", sglang_module(), True),
        ("0.5.24", sglang_module(), True),
        ("0.5.23", "# a comment\n\n" + sglang_module() + "\n\ndef added():\n    pass\n", True),
        ("0.5.23", sglang_module().replace("total +=", "total = total +"), False),
        ("0.5.23", sglang_module().replace("constexpr(0.0)", "constexpr(1.0)"), False),
        ("0.5.23", sglang_module().replace("product.to(tl.float32) *", "1 * product.to(tl.float32) *"), False),
    ],
)
def test_an_environment_lasts_as_long_as_the_kernels_source(install, version, text, same):
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    before = kernel_hash(SGLANG)
    install("sglang", version, sglang_source(text))
    assert (kernel_hash(source_of("sglang", version)) == before) is same


def test_a_function_is_compiled_as_the_engine_compiles_it(install):
    """Its cache key is that of the function in the imported module, helpers and first line included."""
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    found = find_kernels(SGLANG)
    module = importlib.import_module("sglang.kernels.ops.gemm.fp8_kernel")
    try:
        for place in (each for kernel in found for each in (kernel.gemm, kernel.reduction) if each is not None):
            taken = load_function(place.taken, place.module, place.file)
            imported = getattr(module, place.taken.name)
            assert taken is not imported
            assert taken.cache_key == imported.cache_key
            assert taken.starting_line_number == imported.starting_line_number
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def test_a_kernel_of_one_architecture_is_launched_on_that_one_alone(install):
    from blockscale.measure.functions import launch_functions

    install("sglang", "0.5.23", sglang_source(sglang_module()))
    found = find_kernels(SGLANG)
    names = {arch: launch_functions(found, arch).gemms[Kernel.FP8].__name__ for arch in ("sm_90", "gfx942", "gfx1250")}
    assert names == {"sm_90": GENERIC, "gfx942": GENERIC, "gfx1250": f"{GENERIC}_gfx1250"}
    assert launch_functions(found, "sm_90").gemms[Kernel.INT8].__name__ == "int8_gemm"


def test_launches_through_an_engines_kernels_give_the_right_numbers(install):
    """Run by Triton's interpreter; each generation of arguments, with and without a K tail."""
    plain = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    cases = []
    for name, version, kernel, module, text in (
        ("sglang", "0.5.23", Kernel.FP8, SGLANG_MODULE, sglang_module(INDIRECT_IMPORTS)),
        ("sglang", "0.5.5", Kernel.FP8, "srt/layers/quantization/fp8_kernel.py", module_of(GENERIC, TILE)),
        ("sglang", "0.5.23", Kernel.FP8_HOPPER, SGLANG_MODULE, sglang_module(INDIRECT_IMPORTS)),
        (
            "sglang", "0.5.23", Kernel.INT8, "kernels/ops/gemm/int8_kernel.py",
            module_of("_w8a8_block_int8_matmul", TILE),
        ),
        ("vllm", "0.33.0", Kernel.FP8_MASKED, VLLM_MODULE, module_of("_w8a8_triton_block_scaled_mm", TILE)),
    ):  # fmt: skip
        folder = install(name, version, {module: text})
        for k in (256, 300):
            keys = {"SWAP_AB": True, "SPLIT_K": 2} if kernel is Kernel.FP8_HOPPER else {}
            cases.append(
                {
                    "kernel": kernel, "shape": (17, 130, k), "block": (128, 128), "out": "float32",
                    "config": plain | keys, "engine": [name, version], "packages": str(folder),
                }
            )  # fmt: skip
    program = Path(__file__).parents[1] / "run_interpreted.py"
    done = subprocess.run(
        [sys.executable, program], input=json.dumps(cases), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["status"], result["worst"] <= 1.0) for result in results] == [("ok", True)] * len(cases)
    owners = [result["function"] for result in results[::2]]
    assert owners == [GENERIC, GENERIC, f"{GENERIC}_hopper", "_w8a8_block_int8_matmul", "_w8a8_triton_block_scaled_mm"]


PROBLEM = Problem(GemmShape(16, 2112, 7168))
PLAIN = Candidate(Kernel.FP8, TileConfig(16, 64, 128, num_stages=2))
SPLIT = Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, num_stages=2, swap_ab=True, split_k=4))


def cached(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.cubin")}


def test_what_the_pool_compiles_is_what_the_engine_would_look_up(install, tmp_path):
    install("sglang", "0.5.23", sglang_source(sglang_module()))
    cache = tmp_path / "cache"
    pool = CompilePool(CompileOptions(cache, SGLANG), PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        outcomes = [
            pool.submit(CompileRequest(H200, problem, candidate)).result(WAIT_S)
            for problem, candidate in ((PROBLEM, PLAIN), (PROBLEM, SPLIT), (Problem(GemmShape(32, 2112, 7168)), SPLIT))
        ]
    finally:
        pool.close()
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [(TrialStatus.OK, "")] * 3
    names = sorted(path.stem for path in cached(cache))
    # The reduction is compiled for each number of C's elements.
    assert names == ["_reduce_block_fp8_split_k"] * 2 + [GENERIC, f"{GENERIC}_hopper"]

    before = cached(cache)
    subprocess.run(
        [sys.executable, "-c", SERVING],
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        timeout=WAIT_S,
    )
    assert cached(cache) == before


# What a server does: imports the module, passes a file's entry by keyword and the rest by position.
SERVING = """
import torch
from blockscale.kernels.compile_only import offline_target
from sglang.kernels.ops.gemm import fp8_kernel

offline_target("sm_90")
m, n, k, groups = 16, 2112, 7168, 56
operands = (torch.float8_e4m3fn, torch.float8_e4m3fn)
sizes = (torch.float32, torch.float32, m, n, k, 128, 128, k, 1, 1, k, n, 1, groups, 1, 1, groups)
tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
entry = {**tile, "num_warps": 4, "num_stages": 2}
fp8_kernel._w8a8_block_fp8_matmul.warmup(*operands, torch.bfloat16, *sizes, **entry, needs_masking=False, grid=(1,))
swapped = {**entry, "SWAP_AB": True, "SPLIT_K": 4}
fp8_kernel._w8a8_block_fp8_matmul_hopper.warmup(
    *operands, torch.float32, *sizes, **swapped, needs_masking=False, grid=(1,)
)
fp8_kernel._reduce_block_fp8_split_k.warmup(torch.float32, torch.bfloat16, m * n, 4, 256, grid=(1,))
"""


def test_an_engines_split_k_is_compiled_for_each_size_of_c():
    larger = Problem(GemmShape(32, 2112, 7168))
    assert compile_key(PROBLEM, SPLIT) == compile_key(larger, SPLIT)
    assert compile_key(PROBLEM, SPLIT, SGLANG) != compile_key(larger, SPLIT, SGLANG)
    assert compile_key(PROBLEM, PLAIN, SGLANG) == compile_key(larger, PLAIN, SGLANG)


def test_a_process_that_cannot_find_the_kernels_says_what_to_do():
    error = start_error(ChildRaisedError("InputError", "the kernels of sglang 0.5.23 cannot be timed: …"))
    assert isinstance(error, InputError)
    assert "sglang 0.5.23" in str(error)


def test_a_pool_whose_engine_is_gone_says_what_to_do(tmp_path):
    pool = CompilePool(CompileOptions(tmp_path, SGLANG), PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        with pytest.raises(InputError, match="sglang is not installed here"):
            pool.submit(CompileRequest(H200, PROBLEM, PLAIN)).result(WAIT_S)
    finally:
        pool.close()
