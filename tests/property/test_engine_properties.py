"""Properties of merging, of the lookup and of legality that hold for any input."""

import json
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.engines import engine, merge_into, read_config_file
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig
from blockscale.space import build_space, shared_memory_bytes

MI300X = DeviceSpec("AMD Instinct MI300X", Vendor.HIP, "gfx942", 304, 65_536, 131_072, 1024, 64, 4 << 20, 192 << 30)

batch_sizes = st.integers(min_value=-5, max_value=10_000)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
entries = st.dictionaries(st.text(), json_values, max_size=3)
old_files = st.dictionaries(batch_sizes, st.none() | entries, max_size=5)
new_files = st.dictionaries(batch_sizes, entries, max_size=5)


@given(old=old_files, new=new_files, shuffled=st.randoms())
def test_a_merge_is_the_union_in_numeric_order(old, new, shuffled) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        keys = list(old)
        shuffled.shuffle(keys)
        path.write_text(json.dumps({str(m): old[m] for m in keys}))
        report = merge_into(path, new, {})
        if new:
            written = read_config_file(path).entries
            assert written == report.entries == {**old, **new}
            assert list(written) == sorted(written)
            assert not merge_into(path, new, {}).changed
        else:
            assert read_config_file(path).entries == old


@given(keys=st.lists(st.integers(1, 5000), min_size=1, unique=True), m=st.integers(1, 10_000))
def test_no_key_is_nearer_and_none_as_near_comes_before(keys, m) -> None:
    chosen = engine("sglang").lookup_key(keys, m)
    distance = abs(chosen - m)
    before = keys[: keys.index(chosen)]
    assert all(abs(key - m) >= distance for key in keys)
    assert all(abs(key - m) > distance for key in before)


sizes = st.sampled_from([16, 32, 64, 96, 128, 256])
configs = st.builds(
    TileConfig,
    block_m=sizes,
    block_n=sizes,
    block_k=sizes,
    swap_ab=st.booleans(),
    split_k=st.integers(1, 16),
    waves_per_eu=st.sampled_from([None, 0, 2]),
)
problems = st.builds(
    Problem,
    st.builds(GemmShape, st.integers(1, 8192), st.integers(1, 40_000), st.integers(1, 20_000)),
    st.builds(QuantScheme, st.sampled_from(QuantFormat), sizes, sizes),
)
engines = st.builds(
    engine,
    st.just("sglang"),
    st.sampled_from(["0.5.5", "0.5.9", "0.5.11", "0.5.12", "0.5.20", "0.5.23", "main"]),
) | st.builds(engine, st.just("vllm"), st.sampled_from(["0.8.5", "0.33.0"]))


@given(eng=engines, problem=problems, config=configs, spec=st.sampled_from([H200, MI300X]))
def test_what_is_legal_runs_as_it_is_written_with_one_scale_a_tile(eng, problem, config, spec) -> None:
    if any(clause.check(problem, config) for clause in eng.clauses(problem, spec)):
        return
    assert eng.effective_config(problem, config, spec) == config
    assert problem.quant.block_k % config.block_k == 0
    assert TileConfig.from_entry(eng.entry(config)) == config
    if config.swap_ab or config.split_k > 1:
        assert eng.kernel_for(problem, config, spec) is Kernel.FP8_HOPPER
        assert eng.takes_swap_split(spec)


@given(eng=engines, problem=problems, spec=st.sampled_from([H200, MI300X]))
def test_the_default_breaks_no_clause_and_is_clamped_once(eng, problem, spec) -> None:
    default, clamped = eng.default_config(problem, spec), eng.clamped_default(problem, spec)
    assert not any(clause.check(problem, default) for clause in eng.clauses(problem, spec))
    assert (clamped.block_k, clamped.num_warps) == (default.block_k, default.num_warps)
    assert clamped.num_stages <= default.num_stages


@settings(max_examples=settings.default.max_examples // 2)
@given(
    eng=engines,
    shape=st.builds(GemmShape, st.integers(1, 8192), st.integers(1, 40_000), st.integers(1, 20_000)),
    quant=st.builds(QuantScheme, st.just(QuantFormat.FP8), st.sampled_from([32, 64, 128]), st.sampled_from([64, 128])),
    spec=st.sampled_from([H200, MI300X]),
)
def test_a_space_offers_only_what_fits_and_reads_right_scales(eng, shape, quant, spec) -> None:
    problem = Problem(shape, quant)
    hopper = eng.takes_swap_split(spec)
    space = build_space(problem, spec, hopper=hopper, clauses=eng.clauses(problem, spec))
    drawn = space.sample(random.Random(0), 50)
    assert drawn
    for config in drawn:
        assert quant.block_k % config.block_k == 0
        assert shared_memory_bytes(problem.quant, config, spec) <= spec.shared_memory_bytes
        assert config.block_m * config.block_n <= spec.registers_per_unit
        assert config.num_warps * spec.warp_size <= spec.max_threads_per_block
        assert eng.effective_config(problem, config, spec) == config
        assert hopper or not (config.swap_ab or config.split_k > 1)
        assert (config.waves_per_eu is None) == (spec.vendor is Vendor.CUDA)
