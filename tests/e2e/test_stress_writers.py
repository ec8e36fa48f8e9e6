"""Runs that write one file at the same time, over and over: every key is there, and no reader sees half a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
TUNE = ["tune", "--N", "7168", "--K", "2304", "--device", "recorded:h200", "--engine", "sglang", "--trials", "5"]
BATCH_SIZES = ["1", "2", "8", "16", "64", "256", "1024", "4096"]


def write_at_once(folder: Path) -> list[str]:
    """One run a batch size, all at once, read along by this process; the keys of the file in their order."""
    runs = [
        subprocess.Popen(
            [*BLOCKSCALE, *TUNE, "--batch-sizes", m, "--save-path", "out", "--store", f"{m}.db"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for m in BATCH_SIZES
    ]
    while any(run.poll() is None for run in runs):
        for path in folder.glob("out/N=*.json"):
            assert json.loads(path.read_text())
    for run in runs:
        _, error = run.communicate()
        assert run.returncode == 0, error
    (path,) = folder.glob("out/N=*.json")
    return list(json.loads(path.read_text()))


@pytest.mark.slow
def test_writers_at_once_lose_no_key(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert write_at_once(folder) == BATCH_SIZES
