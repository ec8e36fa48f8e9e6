"""What a winner has to beat: read from files as the engine reads them, else the engine's default."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.engines import engine
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import GemmShape, Problem, TileConfig
from blockscale.tuning.baselines import Baseline, baseline_of, read_entries
from blockscale.tuning.target import FileTarget

MI300X = replace(H200, name="AMD Instinct MI300X", vendor=Vendor.HIP, arch="gfx942", shared_memory_bytes=65_536)
PROBLEM = Problem(GemmShape(16, 2112, 7168))
UNSTAGED = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4}


def baseline_with(folder: Path, entries: object, spec: DeviceSpec) -> Baseline:
    sglang = engine("sglang", "0.5.23")
    target = FileTarget(sglang, folder, PROBLEM.shape.weight, PROBLEM.quant, spec.name)
    target.path.write_text(json.dumps(entries))
    return baseline_of(sglang, PROBLEM, spec, read_entries(target))


@pytest.mark.parametrize(("spec", "stages"), [(MI300X, 2), (H200, 3)], ids=lambda value: getattr(value, "name", None))
def test_an_entry_without_num_stages_runs_with_the_compilers_own(tmp_path, spec, stages):
    baseline = baseline_with(tmp_path, {"16": UNSTAGED}, spec)
    assert baseline.candidate.config.num_stages == stages
    assert baseline.entry == UNSTAGED, "a kept entry is written as it was"


def test_the_engines_default_is_tried_beside_a_files_entry(tmp_path):
    baseline = baseline_with(tmp_path, {"24": {**UNSTAGED, "num_stages": 2}}, H200)
    assert baseline.source == "file, key 24"
    assert [candidate.config for candidate in baseline.candidates] == [
        TileConfig(16, 64, 128, num_stages=2),
        TileConfig(64, 128, 128),
    ]


@pytest.mark.parametrize("entries", [{}, {"16": None}, {"16": {"num_warps": 4}}, {"sixteen": UNSTAGED}])
def test_without_a_usable_entry_the_default_is_the_baseline(tmp_path, entries):
    baseline = baseline_with(tmp_path, entries, H200)
    assert baseline.source == "engine default"
    assert baseline.candidates == (baseline.default,)
