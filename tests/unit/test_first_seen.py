"""A run that is repeated keeps what others have put into its files since, and is not fooled by what it wrote itself."""

import json
from pathlib import Path

import pytest

from blockscale.engines import engine
from blockscale.errors import IncompleteRunError
from blockscale.executor.base import Device
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.selection import Outcome
from blockscale.store import Store
from blockscale.tuning.events import Note, RunSummary
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

NAME = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
# The best that the recording holds at M = 16, and a poor but right config.
BEST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4,
        "SWAP_AB": True, "SPLIT_K": 8}  # fmt: skip
POOR = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}


class Bench:
    """One weight on the recorded H200, tuned into one folder; every run opens store and device anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recording = load_recording(embedded("h200"))
        self.file = folder / NAME
        self.events: list[object] = []

    @property
    def device(self) -> Device:
        return ReplayDevice(self._recording)

    def tune(self, *batch_sizes: int, device: Device | None = None, store: str = "s.db", **more: object) -> RunSummary:
        request = TuneRequest((WeightShape(2112, 7168),), batch_sizes, (("sglang", self.folder),), **more)
        with Store.open(self.folder / store) as opened:
            return run_tune(request, [engine("sglang")], device or self.device, opened, self.events.append)

    def entries(self) -> dict[str, dict]:
        return json.loads(self.file.read_text())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def notes(bench):
    return [event.text for event in bench.events if isinstance(event, Note) and "was changed since" in event.text]


def test_a_run_with_fewer_trials_repeated_after_a_better_one_leaves_the_better_entries(bench):
    few = {"search": "random", "trials": 3}
    poorer = bench.tune(1, 16, **few)
    bench.tune(1, 16)
    better = bench.file.read_bytes()
    again = bench.tune(1, 16, **few)
    assert bench.file.read_bytes() == better
    assert {r.outcome for r in again.results} == {Outcome.KEPT}
    assert all(a.time_us < p.time_us for a, p in zip(again.results, poorer.results, strict=True))
    assert len(notes(bench)) == 1


def test_a_run_that_compared_anew_is_continued_like_any_other(bench):
    bench.tune(16, trials=3)
    bench.tune(16)
    bench.tune(16, trials=3)
    after = bench.file.read_bytes()
    bench.events.clear()
    assert bench.tune(16, trials=3).trials_measured == 0
    assert bench.file.read_bytes() == after
    assert notes(bench) == []


def test_a_worse_entry_that_somebody_put_there_is_beaten_again(bench):
    bench.tune(16)
    tuned = bench.file.read_bytes()
    bench.file.write_text(json.dumps({"16": POOR}))
    assert [r.outcome for r in bench.tune(16).results] == [Outcome.TUNED]
    assert bench.file.read_bytes() == tuned


def test_what_the_run_wrote_under_one_key_is_somebody_elses_under_another(bench):
    bench.tune(1, 16, trials=3)
    entries = bench.entries()
    assert entries["1"] != entries["16"]
    bench.file.write_text(json.dumps({**entries, "16": entries["1"]}))
    bench.tune(1, 16, trials=3)
    assert len(notes(bench)) == 1


@pytest.mark.parametrize("change", ["deleted", "broken", "key_added", "key_null"])
def test_what_changes_no_entry_of_the_run_starts_nothing_anew(bench, change):
    bench.tune(16)
    entries = bench.entries()
    if change == "deleted":
        bench.file.unlink()
    else:
        changed = {"broken": "{", "key_added": json.dumps({**entries, "4096": POOR}), "key_null": '{"16": null}'}
        bench.file.write_text(changed[change])
    assert bench.tune(16).trials_measured == 0
    assert bench.entries()["16"] == entries["16"]
    assert notes(bench) == []


def test_with_overwrite_the_runs_own_entries_win_again(bench):
    bench.tune(16, trials=3, overwrite=True)
    own = bench.file.read_bytes()
    bench.file.write_text(json.dumps({"16": BEST}))
    assert bench.tune(16, trials=3, overwrite=True).trials_measured == 0
    assert bench.file.read_bytes() == own


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_entries_that_an_interrupted_run_wrote_are_its_own(bench, share):
    before = json.dumps({"16": POOR, "4096": POOR})
    bench.file.write_text(before)
    whole = bench.tune(1, 16, 64, store="whole.db").trials_measured
    bench.file.write_text(before)
    lost = FaultyDevice(bench.device, FaultPlan(at_trial={int(share * whole): Fault.DEVICE_LOST}))
    with pytest.raises(IncompleteRunError):
        bench.tune(1, 16, 64, device=lost)
    bench.tune(1, 16, 64)
    assert notes(bench) == []


def test_every_other_batch_size_is_compared_anew_too(bench):
    bench.tune(1, 16, 64, trials=1)  # one trial finds nothing better than the default
    bench.file.write_text(json.dumps({**bench.entries(), "16": BEST}))
    outcomes = {r.problem.shape.M: r.outcome for r in bench.tune(1, 16, 64, trials=1).results}
    assert outcomes == {1: Outcome.KEPT, 16: Outcome.KEPT, 64: Outcome.KEPT}
    assert bench.entries()["16"] == BEST
    assert len(notes(bench)) == 1
