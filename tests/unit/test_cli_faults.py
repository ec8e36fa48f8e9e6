"""How a run on a failing device ends at the command line."""

import json
from dataclasses import replace

import pytest

from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import H200
from blockscale.recording import embedded, load_recording

RUN = ["tune", "--N", "2112", "--K", "7168", "--engine", "sglang", "--batch-sizes", "1", "16", "--yes"]


@pytest.fixture
def run_with(monkeypatch, tmp_path):
    """Runs ``tune`` in an empty folder on the recorded H200 with these faults."""
    monkeypatch.chdir(tmp_path)

    def run(plan: FaultPlan, *more: str) -> int:
        device = FaultyDevice(ReplayDevice(load_recording(embedded("h200"))), plan)
        monkeypatch.setattr(tune, "open_devices", lambda *given: [device])
        return main([*RUN, *more])

    return run


def test_a_problem_without_a_valid_candidate_ends_in_exit_3_with_a_full_summary(run_with, capsys):
    assert run_with(FaultPlan(rates={Fault.COMPILE_ERROR: 1.0}), "--json") == 3
    out, err = capsys.readouterr()
    summary = json.loads(out.splitlines()[-1])
    assert summary["complete"] is False
    assert {p["status"] for p in summary["problems"]} == {"no_valid_candidate"}
    assert summary["files"] == []
    assert "The same command goes on" in err
    assert "Traceback" not in err


def test_a_lost_device_ends_in_exit_3_and_the_same_command_goes_on(run_with, capsys, tmp_path):
    assert run_with(FaultPlan(), "--json", "--store", "whole.db", "--save-path", "whole") == 0
    trials = json.loads(capsys.readouterr().out.splitlines()[-1])["trials_measured"]
    # The last trial belongs to the second problem: the first one is done.
    assert run_with(FaultPlan(at_trial={trials: Fault.DEVICE_LOST})) == 3
    out, err = capsys.readouterr()
    assert "[1/2]" in out
    assert "[2/2]" not in out
    assert err.count("\n") == 1
    assert run_with(FaultPlan(), "--json") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["trials_reused"] > trials / 2
    (file,) = (tmp_path / "configs" / "sglang").glob("N=*.json")
    assert list(json.loads(file.read_text())) == ["1", "16"]


def test_an_empty_space_is_refused_before_a_store_or_folder_appears(monkeypatch, tmp_path, capsys):
    class NoSharedMemory(ReplayDevice):
        spec = replace(H200, shared_memory_bytes=1024)

    monkeypatch.chdir(tmp_path)
    device = NoSharedMemory(load_recording(embedded("h200")))
    monkeypatch.setattr(tune, "open_devices", lambda *given: [device])
    assert main(RUN) == 2
    assert "no config is legal" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
