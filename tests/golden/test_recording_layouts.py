"""Recordings written by earlier versions stay readable, and what is written now stays as it is."""

from pathlib import Path

import pytest

from blockscale.hardware import H200
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    OutDtype,
    Phase,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
)
from blockscale.recording import load_recording, write_recording

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1", (("note", "a ≥ b"),))
FP8 = Problem(GemmShape(16, 512, 1024))
INT8 = Problem(GemmShape(16, 512, 1024), QuantScheme(QuantFormat.INT8, 64, 32), OutDtype.FLOAT32)
CONFIG = TileConfig(16, 64, 128)
PLAIN = Candidate(Kernel.FP8, CONFIG)
HOPPER = Candidate(Kernel.FP8_HOPPER, CONFIG.with_(swap_ab=True, split_k=4))
EXTRA = Candidate(Kernel.INT8, CONFIG.with_(extra=(("grf_mode", '"256"'),)))
TRIALS = [
    Trial(FP8, PLAIN, TrialStatus.OK, samples_us=(8.5, 8.25, 9.125), compile_s=0.75, elapsed_s=0.0125),
    Trial(FP8, HOPPER, TrialStatus.OK, samples_us=(7.5,), labels=("power_capped",)),
    Trial(FP8, Candidate(Kernel.FP8, CONFIG.with_(block_n=32)), TrialStatus.COARSE, samples_us=(20.0,)),
    Trial(INT8, EXTRA, TrialStatus.COMPILE_ERROR, message='ptxas fatal: "é"\nline 2', compile_s=0.5),
    Trial(FP8, PLAIN, TrialStatus.OK, phase=Phase.FINAL, samples_us=(8.5, 8.75)),
]


@pytest.mark.parametrize("layout", [2, 3])
def test_every_layout_reads_as_the_same_trials(layout):
    recording = load_recording(FOLDER / f"recording_layout_{layout}.jsonl")
    assert recording.spec == H200
    assert (recording.environment, recording.environment.details) == (ENVIRONMENT, ENVIRONMENT.details)
    for problem, kernel in ((FP8, Kernel.FP8), (FP8, Kernel.FP8_HOPPER), (INT8, Kernel.INT8)):
        expected = tuple(t for t in TRIALS if (t.problem, t.candidate.kernel) == (problem, kernel))
        assert recording.trials(problem, kernel) == expected


def test_writing_gives_the_newest_layout_byte_for_byte(tmp_path):
    write_recording(tmp_path / "r.jsonl", H200, ENVIRONMENT, TRIALS)
    assert (tmp_path / "r.jsonl").read_bytes() == (FOLDER / "recording_layout_3.jsonl").read_bytes()
