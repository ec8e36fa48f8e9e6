"""Runs that share a file, and runs that are killed: nothing that was finished is lost."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockscale.problem import Phase
from blockscale.store import Store

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
TUNE = ["tune", "--N", "2112", "--K", "7168", "--device", "recorded:h200", "--engine", "sglang", "--trials", "20"]
NAME = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


def test_eight_runs_that_write_one_file_at_once_lose_no_key_and_show_no_reader_half_a_file(tmp_path: Path) -> None:
    shares = [["1", "4096"], ["2", "3072"], ["4", "2048"], ["8"], ["16"], ["24"], ["32"], ["64"]]
    weight = ["--N", "7168", "--K", "2304", "--device", "recorded:h200", "--engine", "sglang", "--trials", "5"]
    runs = [
        subprocess.Popen(
            [*BLOCKSCALE, "tune", *weight, "--batch-sizes", *share, "--store", f"{number}.db", "--save-path", "shared"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for number, share in enumerate(shares)
    ]
    seen: set[str] = set()
    while any(run.poll() is None for run in runs):
        for path in tmp_path.glob("shared/N=*.json"):
            keys = set(json.loads(path.read_text()))
            assert seen <= keys, "a key that was there is gone"
            seen = keys
        time.sleep(0.001)
    for run in runs:
        _, error = run.communicate()
        assert run.returncode == 0, error
    (path,) = tmp_path.glob("shared/N=*.json")
    keys = list(json.loads(path.read_text()))
    assert keys == sorted((m for share in shares for m in share), key=int)


KILLED_AT = """
import sys
from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.recording import embedded, load_recording

plan = FaultPlan(at_trial={int(sys.argv[1]): Fault.KILL})
tune.open_devices = lambda *given: [FaultyDevice(ReplayDevice(load_recording(embedded("h200"))), plan)]
main(sys.argv[2:])
"""


@pytest.mark.parametrize("moment", ["at its first trial", "while screening", "while comparing finalists"])
def test_a_killed_run_keeps_every_finished_trial_and_ends_in_the_same_bytes(tmp_path: Path, moment: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    arguments = [*TUNE, "--batch-sizes", "16", "64", "--yes"]
    subprocess.run([*BLOCKSCALE, *arguments], cwd=whole, check=True, capture_output=True)
    with Store.open(whole / "blockscale.db") as store:
        screened = [trial.phase for _, trial in store.trials()].index(Phase.FINAL)
    # A comparison is kept whole or not at all.
    trial, kept = {
        "at its first trial": (1, 0),
        "while screening": (7, 6),
        "while comparing finalists": (screened + 2, screened),
    }[moment]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT, str(trial), *arguments], cwd=killed, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store.open(killed / "blockscale.db") as store:
        assert sum(1 for _ in store.trials()) == kept
    subprocess.run([*BLOCKSCALE, *arguments], cwd=killed, check=True, capture_output=True)
    written = Path("configs", "sglang", NAME)
    assert (killed / written).read_bytes() == (whole / written).read_bytes()
