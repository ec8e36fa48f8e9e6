"""What a run over whole models takes: memory of the parent process, and disk for the store."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockscale.measure.timing import TimingPlan

DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
BATCH_SIZES = 18


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory where there is such a place: a run commits each trial, and disks take their time."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="blockscale-") as made:
        yield Path(made)


@pytest.mark.parametrize(
    ("search", "least_trials"),
    [([], 15), pytest.param(["--search", "random", "--trials", "120"], 120, marks=pytest.mark.slow)],
    ids=["auto", "random"],
)
def test_a_run_over_whole_models_stays_small_in_memory_and_on_disk(
    folder: Path, search: list[str], least_trials: int
) -> None:
    (folder / "dense.json").write_text(json.dumps(DENSE))
    program = Path(__file__).with_name("tune_whole_model.py")
    arguments = ["deepseek-v3", "dense.json", "--engine", "sglang", "--tp-size", "1", *search]
    done = subprocess.run(
        [sys.executable, program, *arguments], cwd=folder, capture_output=True, encoding="utf-8", timeout=500
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    files = list((folder / "configs" / "sglang").glob("N=*.json"))
    assert found["code"] == 0
    assert len(files) >= 8
    assert all(len(json.loads(file.read_text())) == BATCH_SIZES for file in files)
    assert found["samples"] >= TimingPlan().samples * least_trials * len(files) * BATCH_SIZES
    assert found["peak_mib"] < 1024
    assert found["bytes_a_sample"] <= 200
