"""Whatever was measured comes back from a recording and from a store unchanged."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from blockscale.executor.replay import ReplayDevice
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
from blockscale.store import Store, export_recording

ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1", (("µ", "≥ 1"),))

sizes = st.integers(1, 70_000)
problems = st.builds(
    Problem,
    st.builds(GemmShape, sizes, sizes, sizes),
    st.builds(QuantScheme, st.sampled_from(QuantFormat), st.sampled_from([32, 64, 128]), st.sampled_from([64, 128])),
    st.sampled_from(OutDtype),
)
tiles = st.sampled_from([16, 32, 64, 128, 256])
extras = st.dictionaries(st.sampled_from(["grf_mode", "num_ctas"]), st.one_of(st.text(max_size=5), st.integers()))
configs = st.builds(
    TileConfig,
    block_m=tiles,
    block_n=tiles,
    block_k=tiles,
    group_m=st.sampled_from([1, 8, 16, 32, 64]),
    num_warps=st.sampled_from([1, 2, 4, 8]),
    num_stages=st.integers(1, 7),
    swap_ab=st.booleans(),
    split_k=st.sampled_from([1, 2, 4, 16]),
    waves_per_eu=st.sampled_from([None, 0, 2]),
    matrix_instr_nonkdim=st.sampled_from([None, 16, 32]),
    kpack=st.sampled_from([None, 1, 2]),
    extra=extras.map(lambda d: tuple(sorted((k, json.dumps(v, sort_keys=True)) for k, v in d.items()))),
)
times = st.floats(0.001, 1e7)
seconds = st.floats(0, 1e5)


@st.composite
def trials(draw):
    status = draw(st.sampled_from([s for s in TrialStatus if s is not TrialStatus.UNRECORDED]))
    return Trial(
        problem=draw(problems),
        candidate=Candidate(draw(st.sampled_from(Kernel)), draw(configs)),
        status=status,
        phase=draw(st.sampled_from(Phase)),
        samples_us=tuple(draw(st.lists(times, min_size=int(status.timed), max_size=6))),
        message=draw(st.text(max_size=40)),
        compile_s=draw(seconds),
        elapsed_s=draw(seconds),
        labels=tuple(draw(st.lists(st.sampled_from(["power_capped", "thermal"]), unique=True))),
    )


def by_problem_and_kernel(some):
    return sorted(some, key=lambda t: (t.problem, t.candidate.kernel))


@given(st.lists(trials(), min_size=1, max_size=8), st.sampled_from(["r.jsonl", "r.jsonl.gz"]))
def test_recording_gives_back_what_was_written(some, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_recording(path, H200, ENVIRONMENT, some)
        recording = load_recording(path)
        assert recording.environment == ENVIRONMENT
        assert by_problem_and_kernel(recording) == by_problem_and_kernel(some)


@given(st.lists(trials(), min_size=1, max_size=8))
def test_store_gives_back_what_was_added_also_after_reopening(some):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        with Store.open(path) as store:
            for trial in some:
                store.add(ENVIRONMENT, trial)
            assert [trial for _, trial in store.trials()] == some
        with Store.open(path) as store:
            assert list(store.trials()) == [(ENVIRONMENT, trial) for trial in some]
            latest = {(t.problem, t.candidate, t.phase): t for t in some}
            for (problem, candidate, phase), trial in latest.items():
                assert store.find(ENVIRONMENT, problem, candidate, phase) == trial


@given(trials())
def test_exported_store_replays_the_same_trial(screen, compare, trial):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl.gz"
        with Store.open(Path(folder) / "s.db") as store:
            store.register(ENVIRONMENT, H200)
            store.add(ENVIRONMENT, trial)
            assert export_recording(store, path) == 1
        device = ReplayDevice(load_recording(path))
        replay = screen if trial.phase is Phase.SCREEN else compare
        (replayed,) = replay(device, trial.problem, [trial.candidate])
        assert (replayed.status, replayed.samples_us, replayed.message, replayed.labels, replayed.compile_s) == (
            trial.status,
            trial.samples_us,
            trial.message,
            trial.labels,
            trial.compile_s,
        )
        assert trial.elapsed_s in (0.0, replayed.elapsed_s)
