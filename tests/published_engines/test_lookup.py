"""What a published release finds, reads and launches, against what our contracts of the engines say."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockscale.cli.main import main
from blockscale.engines import read_config_file
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape

ENTRY = TileConfig(64, 64, 128, 1, num_warps=4, num_stages=3).to_entry()
SEVERAL_EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

DEVICES = [
    "NVIDIA H200",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA GeForce RTX 4090 D",
    "Tesla T4",
    "AMD Instinct MI300X",
    "AMD Instinct MI250X/MI250",
    "AMD_Instinct_MI325_OAM",
    "AMD Radeon Graphics",
    "Intel(R) Arc(TM) Pro B70 Graphics",
    "Two  blanks and a\ttab",
    "0x75b0",
]


def test_the_loader_is_where_the_installed_engine_is_looked_for(release, monkeypatch):
    monkeypatch.syspath_prepend(release.packages)
    found = type(release.engine).installed()
    assert (found.name, found.version) == (release.engine.name, release.engine.version)
    assert found.config_folder == release.packages / release.module_path(QuantFormat.FP8).parent / "configs"
    assert any(found.config_folder.glob("N=*.json"))


@pytest.mark.parametrize("device", DEVICES)
def test_file_names_are_those_that_the_release_looks_for(publish, release, quant, device):
    published = publish(quant.format, device)
    for n, k, block_n, block_k in [(512, 7168, 128, 128), (24576, 1536, 64, 128), (1152, 5120, 32, 32)]:
        scheme = QuantScheme(quant.format, block_n, block_k)
        ours = release.engine.file_name(WeightShape(n, k), scheme, device)
        assert published.name_looked_for(n, k, block_n, block_k) == ours.rpartition("/")[2]


@pytest.mark.parametrize(("block_n", "block_k"), [(128, 128), (64, 128), (32, 32)])
def test_the_default_is_launched_without_a_file(publish, release, quant, block_n, block_k):
    problem = Problem(GemmShape(17, 512, 7168), QuantScheme(quant.format, block_n, block_k))
    expected = release.engine.default_config(problem, H200).to_entry()
    assert publish(quant.format).launched(problem)[1] == expected


def test_what_tune_writes_is_found_and_each_batch_size_gets_its_key(publish, release, tmp_path, capsys):
    published = publish()
    arguments = ["--N", "2112", "--K", "7168", "--device", "recorded:h200", "--trials", "20", "--yes"]
    arguments += ["--batch-sizes", "1", "16", "64", "256", "1024", "4096", "--engine", release.engine.name]
    arguments += ["--engine-version", release.engine.version, "--store", str(tmp_path / "store.db")]
    assert main(["tune", *arguments, "--save-path", str(published.configs)]) == 0
    capsys.readouterr()
    (path,) = published.configs.glob("N=*.json")
    entries = read_config_file(path).entries
    assert set(entries) == {1, 16, 64, 256, 1024, 4096}
    for m in {*entries, *random.Random(7).sample(range(1, 5001), 400)}:
        problem = Problem(GemmShape(m, 2112, 7168), QuantScheme())
        entry = entries[release.engine.lookup_key(list(entries), m)]
        assert published.launched(problem) == release.launches(problem, entry)
    assert published.log.warnings == []
    assert any(str(path) in line for line in published.log.infos)


@SEVERAL_EXAMPLES
@given(keys=st.lists(st.integers(1, 5000), min_size=1, max_size=18, unique=True), m=st.integers(1, 5000))
def test_the_nearest_key_is_taken_and_of_two_the_first_in_the_file(publish, release, quant, keys, m):
    published = publish(quant.format)
    problem = Problem(GemmShape(m, 512, 7168), quant)
    path = published.configs / release.engine.file_name(WeightShape(512, 7168), quant, "NVIDIA H200")
    path.write_text(json.dumps({str(key): ENTRY | {"GROUP_SIZE_M": key} for key in keys}))
    assert published.launched(problem)[1]["GROUP_SIZE_M"] == release.engine.lookup_key(keys, m)


@pytest.mark.parametrize("block_k", [16, 32, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("on_cuda", [True, False])
def test_what_the_loader_makes_of_a_block_size_k(publish, release, quant, block_k, on_cuda):
    published = publish(quant.format, on_cuda=on_cuda)
    path = published.configs / release.engine.file_name(WeightShape(512, 7168), quant, "NVIDIA H200")
    path.write_text(json.dumps({"1": ENTRY | {"BLOCK_SIZE_K": block_k}}))
    loaded = published.loader(512, 7168, 128, 128)[1]["BLOCK_SIZE_K"]
    assert loaded == release.engine.loaded_block_k(quant, block_k, on_cuda=on_cuda)
