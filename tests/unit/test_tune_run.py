"""A whole run against the recorded H200: what is written, what is measured again, what survives a fault."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blockscale.engines import engine
from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Device
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import Recording, embedded, load_recording, write_recording
from blockscale.selection import Outcome, SelectionRules
from blockscale.store import Store
from blockscale.tuning.events import FileWritten, Note, ProblemResult, RunSummary, TrialFinished
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

SHAPE = WeightShape(2112, 7168)
NAME = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
# The best that the recording holds at M = 16, one that it does not hold, and a poor but right config.
BEST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4,
        "SWAP_AB": True, "SPLIT_K": 8}  # fmt: skip
UNRECORDED = BEST | {"num_stages": 7}
POOR = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load_recording(embedded("h200"))


class Bench:
    """A folder, a store and a device to run against; every run opens store and device anew, as a process does."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        self.folder = folder
        self.recording = recording
        self.events: list[object] = []

    @property
    def device(self) -> Device:
        return ReplayDevice(self.recording)

    def tune(
        self, *batch_sizes: int, device: Device | None = None, engines=("sglang",), store="s.db", **kw
    ) -> RunSummary:
        folders = tuple((name, self.folder / name) for name in engines)
        request = TuneRequest((SHAPE,), tuple(batch_sizes), folders, **kw)
        with Store.open(self.folder / store) as opened:
            return run_tune(request, [engine(n) for n in engines], device or self.device, opened, self.events.append)

    @property
    def file(self) -> Path:
        return self.folder / "sglang" / NAME

    def entries(self) -> dict[str, dict]:
        return json.loads(self.file.read_text())

    def put(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)


@pytest.fixture
def bench(tmp_path, recording) -> Bench:
    return Bench(tmp_path, recording)


def test_a_run_writes_one_verified_entry_a_batch_size_and_beats_the_default(bench):
    summary = bench.tune(1, 16, 4096)
    assert list(bench.entries()) == ["1", "16", "4096"]
    assert summary.complete
    assert summary.files == (bench.file,)
    assert all(r.time_us <= r.baseline_us for r in summary.results)
    assert next(r for r in summary.results if r.problem.shape.M == 16).time_us < 10


class _Warning(FaultyDevice):
    """A device that has something to say once it has measured."""

    def warnings(self) -> list[str]:
        return ["one GPU was lost"] if self.clock().screening_s else []


def test_what_a_device_has_to_say_midway_is_told_before_the_first_result_and_once(bench):
    bench.tune(1, 16, device=_Warning(bench.device, FaultPlan()))
    told = [
        event.text if isinstance(event, Note) else "result"
        for event in bench.events
        if isinstance(event, Note | ProblemResult)
    ]
    assert told.count("one GPU was lost") == 1
    assert told.index("one GPU was lost") < told.index("result")


@pytest.mark.parametrize("batch_size", [4, 8, 16, 256])
def test_a_winner_that_was_screened_while_the_clock_was_low_wins_all_the_same(bench, batch_size):
    (undisturbed,) = bench.tune(batch_size).results
    best = Candidate(Kernel.FP8_HOPPER, TileConfig.from_entry(undisturbed.entry))
    disturbed = {Candidate(kernel, best.config): Fault.SLOW_SCREEN for kernel in Kernel}
    device = FaultyDevice(bench.device, FaultPlan(on_candidate=disturbed))
    (result,) = bench.tune(batch_size, device=device, store="disturbed.db").results
    assert result.time_us <= 1.001 * undisturbed.time_us


def test_the_same_run_again_measures_nothing_and_changes_no_byte(bench):
    first = bench.tune(1, 16)
    before = bench.file.read_bytes()
    second = bench.tune(1, 16)
    assert first.trials_measured > 2
    assert second.trials_measured == 0
    assert second.results == first.results
    assert bench.file.read_bytes() == before


def test_a_further_batch_size_takes_what_the_store_knows_and_joins_the_file(bench):
    bench.tune(4096, 1)
    summary = bench.tune(1, 16, 4096)
    alone = bench.tune(16, store="alone.db")
    assert list(bench.entries()) == ["1", "16", "4096"]
    # The others learn from the new one, which may make them curious about a few configs more.
    assert alone.trials_measured <= summary.trials_measured <= 1.5 * alone.trials_measured
    assert summary.trials_reused >= alone.trials_measured


def test_keys_of_the_file_that_the_run_does_not_name_stay_in_numeric_order(bench):
    bench.put(json.dumps({"4096": POOR, "1": POOR}))
    bench.tune(16)
    assert list(bench.entries()) == ["1", "16", "4096"]
    assert bench.entries()["4096"] == POOR


def test_an_entry_that_nothing_beats_is_kept(bench):
    bench.put(json.dumps({"16": BEST}))
    (result,) = bench.tune(16).results
    assert result.outcome is Outcome.KEPT
    assert bench.entries() == {"16": BEST}


def test_what_the_lookup_would_run_is_written_under_the_key_where_nothing_beats_it(bench):
    bench.put(json.dumps({"24": BEST}))
    bench.tune(16)
    assert bench.entries() == {"16": BEST, "24": BEST}


def test_a_poor_entry_is_replaced_and_the_comparison_is_with_that_entry(bench):
    bench.put(json.dumps({"16": POOR}))
    (result,) = bench.tune(16).results
    assert result.outcome is Outcome.TUNED
    assert result.baseline_us > 70
    assert bench.entries()["16"] != POOR


@pytest.mark.parametrize(
    "entry",
    [
        None,  # null stands for the default
        POOR | {"BLOCK_SIZE_K": 256},  # not a divisor of block_k: wrong numbers
        {"BLOCK_SIZE_M": 16},  # the launch fails
    ],
)
def test_an_entry_that_cannot_run_does_not_stop_the_run(bench, entry):
    bench.put(json.dumps({"16": entry}))
    (result,) = bench.tune(16).results
    assert result.outcome is Outcome.TUNED
    assert result.time_us < 10


def test_a_file_that_does_not_parse_is_kept_aside_with_a_note(bench):
    bench.put('{"16": {')
    bench.tune(16)
    assert list(bench.entries()) == ["16"]
    aside = [p for p in bench.file.parent.iterdir() if p.is_file() and p != bench.file]
    assert [p.read_text() for p in aside] == ['{"16": {']
    assert any(isinstance(e, Note) and aside[0].name in e.text for e in bench.events)


def test_overwrite_lets_new_entries_win_without_comparison(bench):
    faster = FaultyDevice(bench.device, FaultPlan(on_candidate={_candidate(BEST): Fault.OUT_OF_RESOURCES}))
    bench.put(json.dumps({"16": BEST}))
    (result,) = bench.tune(16, device=faster, overwrite=True).results
    assert result.outcome is Outcome.TUNED
    assert bench.entries()["16"] != BEST


def test_a_candidate_that_is_wrong_on_fresh_inputs_is_not_exported(bench):
    racy = FaultyDevice(bench.device, FaultPlan(on_candidate={_candidate(BEST): Fault.WRONG_IN_FINALS}))
    bench.tune(16, device=racy)
    assert bench.entries()["16"] != BEST
    assert bench.events[-1].results[0].time_us < 10


def test_without_a_valid_candidate_the_key_is_left_out_and_the_run_is_incomplete(bench):
    broken = FaultyDevice(bench.device, FaultPlan(rates={Fault.COMPILE_ERROR: 1.0}))
    summary = bench.tune(16, device=broken)
    assert not summary.complete
    assert summary.results[0].outcome is Outcome.NO_VALID_CANDIDATE
    assert not bench.file.exists()


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DIE, Fault.COMPILE_ERROR, Fault.OUT_OF_RESOURCES, Fault.NOISE])
def test_faults_of_one_candidate_cost_one_trial(bench, fault):
    device = FaultyDevice(bench.device, FaultPlan(rates={fault: 0.3}, seed=1))
    summary = bench.tune(16, 64, device=device)
    assert summary.complete
    assert list(bench.entries()) == ["16", "64"]
    assert all(r.time_us is not None for r in summary.results)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.55, 0.7, 1.0])
def test_a_run_that_lost_its_device_goes_on_to_the_same_bytes(bench, share):
    trials = bench.tune(16, 64, 256, store="whole.db").trials_measured
    whole = bench.file.read_bytes()
    bench.file.unlink()
    trial = max(1, round(share * trials))
    with pytest.raises(IncompleteRunError, match="lost"):
        bench.tune(16, 64, 256, device=FaultyDevice(bench.device, FaultPlan(at_trial={trial: Fault.DEVICE_LOST})))
    rest = bench.tune(16, 64, 256).trials_measured
    assert bench.file.read_bytes() == whole
    # Finals are kept whole or not at all; no other finished trial is made again.
    assert trials - trial < rest <= trials - trial + 1 + SelectionRules().finalists + 2


def test_an_interrupted_weight_is_written_with_what_would_run_under_its_open_keys(bench):
    decided: list[int] = []

    def stop(event: object) -> None:
        if isinstance(event, ProblemResult):
            decided.append(event.problem.shape.M)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _observed(bench, stop, 1, 4096)
    default = TileConfig(64, 128, 128, group_m=32, num_warps=4, num_stages=3).to_entry()
    (done,) = decided
    left = 4097 - done
    assert bench.entries()[str(done)] != default
    assert bench.entries()[str(left)] == default
    bench.tune(1, 4096)
    assert bench.entries()[str(left)] != default, "the entry it wrote itself is not taken for an earlier file's"


def test_the_bound_on_trials_holds_for_each_problem(bench):
    bench.tune(16, 64, trials=10)
    for m in (16, 64):
        screened = {
            e.trial.candidate for e in bench.events if isinstance(e, TrialFinished) and m == e.trial.problem.shape.M
        }
        assert len(screened) == 10


def test_a_time_budget_ends_the_search_but_not_the_comparison(bench):
    free = bench.tune(16, 64, store="free.db")
    half_s = sum(e.trial.elapsed_s for e in bench.events if isinstance(e, TrialFinished)) / 2
    tight = bench.tune(16, 64, time_budget_s=half_s)
    again = bench.tune(16, 64, time_budget_s=half_s)
    assert 0 < tight.trials_measured < free.trials_measured
    assert all(r.time_us <= r.baseline_us for r in tight.results)
    assert again.results == tight.results


def test_both_engines_get_their_own_file_and_no_key_they_do_not_take(bench):
    summary = bench.tune(16, engines=("sglang", "vllm"))
    assert [f.parent.name for f in summary.files] == ["sglang", "vllm"]
    vllm = json.loads(summary.files[1].read_text())["16"]
    assert not {"SWAP_AB", "SPLIT_K"} & set(vllm)


@pytest.mark.parametrize("search", ["auto", "random"])
def test_the_seed_decides_and_nothing_else_does(bench, search):
    first = bench.tune(64, store="a.db", seed=5, search=search, trials=30)
    tried = [e.trial.candidate for e in bench.events if isinstance(e, TrialFinished)]
    bench.events.clear()
    bench.file.unlink()  # else it would be what runs otherwise
    second = bench.tune(64, store="b.db", seed=5, search=search, trials=30)
    assert tried == [e.trial.candidate for e in bench.events if isinstance(e, TrialFinished)]
    assert first.results[0].time_us == second.results[0].time_us


def test_prefill_keys_alone_are_warned_of(bench):
    bench.tune(4096)
    assert any(isinstance(e, Note) and e.warning and "decod" in e.text for e in bench.events)


def test_each_file_has_a_sidecar_with_its_provenance_outside_the_engines_sight(bench):
    bench.tune(16)
    (sidecar,) = bench.file.parent.glob(".blockscale/*.meta.json")
    text = sidecar.read_text()
    assert "3.6.0" in text, "Triton's version"
    assert "samples_us" in text
    assert any(isinstance(e, FileWritten) and e.keys == (16,) for e in bench.events)


def test_an_engine_whose_kernel_is_not_recorded_is_refused_before_anything_is_written(bench, tmp_path):
    """Going on could not help: the same command would end without a candidate for ever."""
    problem = Problem(GemmShape(16, 2112, 7168))
    hopper_alone = tmp_path / "hopper.jsonl"
    trials = bench.recording.trials(problem, Kernel.FP8_HOPPER)
    write_recording(hopper_alone, bench.recording.spec, bench.recording.environment, trials)
    device = ReplayDevice(load_recording(hopper_alone))
    with pytest.raises(InputError, match="no trial of a kernel that vllm launches"):
        bench.tune(16, device=device, engines=("vllm",))
    assert not (bench.folder / "vllm").exists()


def test_an_unrecorded_problem_is_refused_before_anything_is_written(bench):
    with pytest.raises(InputError, match="2112"):
        bench.tune(17)
    assert not bench.file.exists()


def test_a_recorded_device_is_asked_only_for_what_it_holds(bench):
    bench.put(json.dumps({"16": UNRECORDED}))
    (result,) = bench.tune(16, search="random", trials=200).results
    trials = [e.trial for e in bench.events if isinstance(e, TrialFinished)]
    (beyond,) = [t for t in trials if not t.status.timed]
    assert beyond.candidate == _candidate(UNRECORDED)
    assert "no recorded trial" in beyond.message
    assert (result.outcome, result.baseline_us) == (Outcome.TUNED, None)
    assert bench.entries()["16"] != UNRECORDED


def _candidate(entry: dict) -> Candidate:
    config = TileConfig.from_entry(entry)
    return Candidate(Kernel.FP8_HOPPER if config.swap_ab or config.split_k > 1 else Kernel.FP8, config)


def _observed(bench: Bench, observer: Callable[[object], None], *batch_sizes: int) -> None:
    request = TuneRequest((SHAPE,), batch_sizes, (("sglang", bench.folder / "sglang"),))
    with Store.open(bench.folder / "s.db") as store:
        run_tune(request, [engine("sglang")], bench.device, store, observer)
