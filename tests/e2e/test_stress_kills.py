"""A run that is killed again and again at random moments ends in the files of one that was never disturbed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
TUNE = ["tune", "--N", "2112", "--K", "7168", "--device", "recorded:h200", "--engine", "sglang", "--engine", "vllm"]


def start(folder: Path, arguments: list[str]) -> "subprocess.Popen[str]":
    """``tune`` in ``folder``, in a process group of its own."""
    return subprocess.Popen(
        [*BLOCKSCALE, *TUNE, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )


def killed_within(process: "subprocess.Popen[str]", seconds: float) -> bool:
    """Kill the process and all its children after ``seconds``; False where it had ended well before."""
    try:
        _, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, error
    return False


def config_files(folder: Path) -> dict[str, bytes]:
    """The engines' files below ``folder``, each of which must be whole."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("configs/*/N=*.json"))}
    for content in files.values():
        assert json.loads(content)
    return files


@pytest.mark.parametrize(
    ("kills", "arguments"),
    [
        (10, ["--trials", "20", "--batch-sizes", "1", "64", "4096"]),
        pytest.param(100, ["--batch-sizes", "1", "16", "64", "256", "1024", "4096"], marks=pytest.mark.slow),
    ],
)
def test_killed_runs_end_in_the_files_of_an_undisturbed_one(kills: int, arguments: list[str], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    began = time.monotonic()
    assert not killed_within(start(whole, arguments), 600)
    span_s = time.monotonic() - began
    expected = config_files(whole)
    assert len(expected) == 2

    moment = random.Random(0)
    survivors = 0
    folder = tmp_path / "0"
    folder.mkdir()
    while kills:
        if killed_within(start(folder, arguments), moment.uniform(0, span_s)):
            kills -= 1
            config_files(folder)
        else:
            assert config_files(folder) == expected
            survivors += 1
            folder = tmp_path / str(survivors)  # nothing is left to kill in a folder that is done
            folder.mkdir()
    assert not killed_within(start(folder, arguments), 600)
    assert config_files(folder) == expected
