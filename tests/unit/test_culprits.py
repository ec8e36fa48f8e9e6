"""A candidate that breaks the measuring process twice is never tried again: within a run, and over restarts."""

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.engines import engine
from blockscale.errors import IncompleteRunError
from blockscale.executor.base import SAME_CODE, Comparison, Screening
from blockscale.executor.culprits import BREAKING, Culprits
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus, WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.store import Store
from blockscale.tuning.ledger import Ledger
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

RECORDING = load_recording(embedded("h200"))
PROBLEMS = [Problem(GemmShape(m, 2112, 7168)) for m in (1, 16, 64, 256)]
CULPRIT, OTHER = (Candidate(Kernel.FP8_HOPPER, TileConfig(16, n, 128, 1, 4, 3, split_k=4)) for n in (32, 64))
DEFAULT = Candidate(Kernel.FP8, TileConfig(64, 128, 128, group_m=1, num_warps=4, num_stages=3))
Open = Callable[[], Ledger]


def trial(status: TrialStatus, problem: Problem = PROBLEMS[0], labels: tuple[str, ...] = ()) -> Trial:
    return Trial(problem, CULPRIT, status, message="it broke", labels=labels)


@pytest.mark.parametrize("status", TrialStatus)
def test_only_what_cost_the_process_counts_and_only_the_second_time(status: TrialStatus) -> None:
    culprits = Culprits()
    culprits.note(trial(status))
    assert culprits.refusal(CULPRIT) is None
    culprits.note(trial(status, PROBLEMS[1]))
    reason = culprits.refusal(CULPRIT)
    assert (reason is not None) == (status in BREAKING)
    if reason is not None:
        assert all(str(problem) in reason for problem in PROBLEMS[:2])
    assert culprits.refusal(OTHER) is None


def test_another_candidates_result_does_not_count() -> None:
    culprits = Culprits()
    for _ in range(2):
        culprits.note(trial(TrialStatus.WORKER_DIED, labels=(SAME_CODE,)))
    assert culprits.refusal(CULPRIT) is None


@pytest.fixture
def reopen(tmp_path: Path) -> Open:
    """A ledger on the same store and on a new device, as after a restart, on which CULPRIT hangs."""
    plan = FaultPlan(on_candidate={CULPRIT: Fault.HANG})
    stores: list[Store] = []

    def open_ledger() -> Ledger:
        for store in stores:
            store.close()
        stores.append(Store.open(tmp_path / "s.db"))
        return Ledger(stores[-1], FaultyDevice(ReplayDevice(RECORDING), plan))

    return open_ledger


def try_on(ledger: Ledger, *problems: Problem) -> list[Trial]:
    found = []
    for problem in problems:
        ledger.start(Screening(problem, CULPRIT), 0)
        found += ledger.next_done().trials
    return found


def test_the_third_time_it_is_refused_and_the_store_says_why(reopen: Open) -> None:
    ledger = reopen()
    trials = try_on(ledger, *PROBLEMS)
    assert [t.status for t in trials] == [TrialStatus.TIMEOUT] * 2 + [TrialStatus.ILLEGAL] * 2
    assert "broke the measuring process before" in trials[2].message
    assert trials[2].elapsed_s == 0
    assert ledger.measured == 2
    assert ledger.known_screening(PROBLEMS[3], CULPRIT) == trials[3]


def test_what_it_did_is_remembered_over_restarts(reopen: Open) -> None:
    statuses = [t.status for problem in PROBLEMS for t in try_on(reopen(), problem)]
    assert statuses == [TrialStatus.TIMEOUT] * 2 + [TrialStatus.ILLEGAL] * 2


def test_a_comparison_goes_on_without_it_and_is_kept_whole(reopen: Open) -> None:
    ledger = reopen()
    try_on(ledger, *PROBLEMS[:2])
    work = Comparison(PROBLEMS[2], (OTHER, CULPRIT, DEFAULT))
    ledger.start(work, 0)
    done = ledger.next_done()
    assert done.work == work
    assert [t.candidate for t in done.trials] == list(work.candidates)
    assert [t.status.timed for t in done.trials] == [True, False, True]
    assert {t.phase for t in done.trials} == {Phase.FINAL}
    assert ledger.known_comparison(work.problem, work.candidates) == list(done.trials)


def tune(folder: Path, plan: FaultPlan) -> Counter[TrialStatus]:
    """One start of a run; how the trials of DEFAULT, which every problem tries, have ended so far."""
    request = TuneRequest(
        (WeightShape(2112, 7168), WeightShape(24576, 1536)),
        (1, 16, 64, 256),
        (("sglang", folder / "out"),),
        search="random",
        trials=8,
    )
    device = FaultyDevice(ReplayDevice(RECORDING), plan)
    folder.mkdir(exist_ok=True)
    with Store.open(folder / "s.db") as store:
        with suppress(IncompleteRunError):
            run_tune(request, [engine("sglang")], device, store, lambda event: None)
        return Counter(t.status for _, t in store.trials() if t.candidate == DEFAULT)


@settings(max_examples=3)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), max_size=2), st.sampled_from([Fault.DIE, Fault.HANG]))
def test_when_it_is_refused_changes_no_file(seed: int, lost: list[int], fault: Fault) -> None:
    """A candidate that always breaks the process fails wherever it is tried, launched or refused."""
    breaks = FaultPlan(on_candidate={DEFAULT: fault}, scrambled=True, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        ended = [tune(whole, replace(breaks, scrambled=False))]
        for number in lost:
            tune(broken, replace(breaks, at_trial={number: Fault.DEVICE_LOST}))
        ended.append(tune(broken, breaks))
        assert files(whole) == files(broken) != {}
    for found in ended:
        assert found[TrialStatus.ILLEGAL] > 0
        assert sum(found.values()) == 6  # at M = 256 its spelling differs


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").glob("N=*.json")}
