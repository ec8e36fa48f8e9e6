"""What a run tries and writes depends neither on how many GPUs finish in what order, nor on interruptions."""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.engines import engine
from blockscale.errors import IncompleteRunError
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import Candidate, Phase, Problem, WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.store import Store
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

RECORDING = load_recording(embedded("h200"))
WEIGHTS = (WeightShape(2112, 7168), WeightShape(24576, 1536))
BATCH_SIZES = (1, 16, 64)

Start = tuple[int, FaultPlan]  # on how many GPUs, and what goes wrong
Tried = dict[tuple[Problem, Candidate, Phase], float]  # with the seconds that each cost


def tune(folder: Path, start: Start, time_budget_s: float | None) -> tuple[dict[str, bytes], Tried]:
    """One start of a run with relative folders in ``folder``: its files by path, and all that its store holds."""
    gpus, plan = start
    folders = tuple((name, folder / name) for name in ("sglang", "vllm"))
    request = TuneRequest(WEIGHTS, BATCH_SIZES, folders, trials=24, time_budget_s=time_budget_s)
    device = FaultyDevice(ReplayDevice(RECORDING, gpus), plan)
    with Store.open(folder / "s.db") as store:
        with suppress(IncompleteRunError):
            run_tune(request, [engine(name) for name, _ in folders], device, store, lambda event: None)
        trials = [trial for _, trial in store.trials()]
    tried = {(t.problem, t.candidate, t.phase): t.elapsed_s for t in trials}
    assert len(tried) == len(trials), "nothing is measured twice"
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/N=*.json"))}
    return files, tried


def whole(starts: Sequence[Start], time_budget_s: float | None) -> tuple[dict[str, bytes], Tried]:
    """What is there after these starts of one run, the last of which is not interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        for start in starts:
            found = tune(Path(folder), start, time_budget_s)
        return found


FREE = whole([(1, FaultPlan())], None)
HALF_S = sum(FREE[1].values()) / 2
UNDISTURBED = {None: FREE, HALF_S: whole([(1, FaultPlan())], HALF_S)}
gpus = st.sampled_from([1, 2, 4])
scrambled = st.builds(FaultPlan, scrambled=st.booleans(), seed=st.integers(0, 10**6))
lost = st.builds(
    lambda plan, trial: replace(plan, at_trial={trial: Fault.DEVICE_LOST}), scrambled, st.integers(1, len(FREE[1]))
)


@settings(max_examples=10)
@given(st.lists(st.tuples(gpus, lost), max_size=3), st.tuples(gpus, scrambled), st.sampled_from([None, HALF_S]))
def test_any_order_of_completion_and_any_interruption_end_in_the_same_bytes(interrupted, last, time_budget_s):
    assert whole([*interrupted, last], time_budget_s) == UNDISTURBED[time_budget_s]


@pytest.mark.parametrize("gpus", [2, 4])
def test_several_gpus_end_in_the_bytes_of_one(gpus):
    assert whole([(gpus, FaultPlan())], None) == FREE


def test_the_budget_of_these_runs_cuts_their_searches_short():
    assert len(UNDISTURBED[HALF_S][1]) < len(FREE[1])
