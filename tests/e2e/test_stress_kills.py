"""A run that is killed again and again at random moments ends in the files of one that was never disturbed."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
SYNTHETIC = [sys.executable, str(Path(__file__).with_name("tune_synthetic.py"))]
TUNE = ["tune", "--N", "2112", "--K", "7168", "--engine", "sglang", "--engine", "vllm", "--yes"]
RECORDED = ["--device", "recorded:h200"]
SMALL = ["--trials", "8", "--batch-sizes", "1", "64", "4096"]
LARGE = ["--batch-sizes", "1", "16", "64", "256", "1024", "4096"]


def start(folder: Path, gpus: int, arguments: list[str]) -> "subprocess.Popen[str]":
    """``tune`` in ``folder``: on so many synthetic GPUs with processes of their own, on the recorded one for 0."""
    program = [*SYNTHETIC, str(gpus), "60", *TUNE] if gpus else [*BLOCKSCALE, *TUNE, *RECORDED]
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )


def killed_within(process: "subprocess.Popen[str]", seconds: float) -> bool:
    """Kill the process after ``seconds``; False where it had ended well before. Its children must end by themselves."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, process.communicate()[1]
    process.communicate()
    return False


def config_files(folder: Path) -> dict[str, bytes]:
    """The engines' files below ``folder``, each of which must be whole."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("configs/*/N=*.json"))}
    for content in files.values():
        assert json.loads(content)
    return files


@pytest.mark.parametrize(
    ("gpus", "kills", "arguments"),
    [
        (0, 10, SMALL),
        *((gpus, kills, SMALL) for gpus, kills in ((1, 3), (2, 3), (4, 4))),
        pytest.param(0, 100, LARGE, marks=pytest.mark.slow),
        *(pytest.param(gpus, kills, LARGE, marks=pytest.mark.slow) for gpus, kills in ((1, 33), (2, 33), (4, 34))),
    ],
)
def test_killed_runs_end_in_the_files_of_an_undisturbed_one(
    gpus: int, kills: int, arguments: list[str], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    began = time.monotonic()
    assert not killed_within(start(whole, min(gpus, 1), arguments), 600)
    span_s = time.monotonic() - began
    expected = config_files(whole)
    assert len(expected) == 2

    moment = random.Random(gpus)
    survivors = 0
    folder = tmp_path / "0"
    while kills:
        if killed_within(start(folder, gpus, arguments), moment.uniform(0, span_s)):
            kills -= 1
            config_files(folder)
        else:
            assert config_files(folder) == expected
            survivors += 1
            folder = tmp_path / str(survivors)  # nothing is left to kill in a folder that is done
    assert not killed_within(start(folder, gpus, arguments), 600)
    assert config_files(folder) == expected
