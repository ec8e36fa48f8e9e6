"""The store: what it keeps, how it is asked, how large it grows, what a kill costs."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from blockscale.errors import IncompleteRunError
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import H200
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    Phase,
    Problem,
    TileConfig,
    Trial,
    TrialStatus,
)
from blockscale.recording import embedded, load_recording
from blockscale.store import Store, export_recording
from blockscale.store.schema import MIGRATIONS, migrate

ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1", (("note", "a"),))
PROBLEM = Problem(GemmShape(16, 512, 1024))
CANDIDATE = Candidate(Kernel.FP8, TileConfig(16, 64, 128))
TRIAL = Trial(PROBLEM, CANDIDATE, TrialStatus.OK, samples_us=(3.0, 3.5), labels=("power_capped",))


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as store:
        yield store


def test_latest_trial_of_the_same_phase_is_found(store):
    store.add(ENVIRONMENT, TRIAL)
    later = replace(TRIAL, samples_us=(2.0,))
    final = replace(TRIAL, phase=Phase.FINAL, samples_us=(4.0,))
    store.add(ENVIRONMENT, later)
    store.add(ENVIRONMENT, final)
    assert store.find(ENVIRONMENT, PROBLEM, CANDIDATE, Phase.SCREEN) == later
    assert store.find(ENVIRONMENT, PROBLEM, CANDIDATE, Phase.FINAL) == final


def test_another_environment_problem_or_candidate_finds_nothing(store):
    store.add(ENVIRONMENT, TRIAL)
    store.register(replace(ENVIRONMENT, driver="590"), H200)
    other = Candidate(Kernel.FP8_MASKED, CANDIDATE.config)
    assert store.find(replace(ENVIRONMENT, driver="590"), PROBLEM, CANDIDATE, Phase.SCREEN) is None
    assert store.find(ENVIRONMENT, replace(PROBLEM, shape=GemmShape(17, 512, 1024)), CANDIDATE, Phase.SCREEN) is None
    assert store.find(ENVIRONMENT, PROBLEM, other, Phase.SCREEN) is None
    assert store.find(ENVIRONMENT, PROBLEM, CANDIDATE, Phase.FINAL) is None


def test_details_do_not_make_another_environment(store):
    store.add(ENVIRONMENT, TRIAL)
    store.add(replace(ENVIRONMENT, details=(("note", "b"),)), TRIAL)
    assert store.environments() == [ENVIRONMENT]
    assert store.environments()[0].details == ENVIRONMENT.details


def test_trials_come_in_order_and_by_environment_and_problem(store):
    other_env = replace(ENVIRONMENT, torch="2.14")
    other_problem = replace(TRIAL, problem=replace(PROBLEM, shape=GemmShape(1, 512, 1024)))
    added = [(ENVIRONMENT, TRIAL), (other_env, TRIAL), (ENVIRONMENT, other_problem)]
    for environment, trial in added:
        store.add(environment, trial)
    assert list(store.trials()) == added
    assert list(store.trials(environment=ENVIRONMENT)) == [added[0], added[2]]
    assert list(store.trials(problem=PROBLEM)) == added[:2]
    assert list(store.trials(ENVIRONMENT, other_problem.problem)) == added[2:]
    assert list(store.trials(replace(ENVIRONMENT, torch="9"))) == []
    assert list(store.trials(problem=replace(PROBLEM, shape=GemmShape(5, 5, 5)))) == []


def test_trials_may_be_added_while_others_are_read(store):
    for i in range(1500):
        store.add(ENVIRONMENT, replace(TRIAL, compile_s=float(i)))
    seen = []
    for _, trial in store.trials():
        seen.append(trial.compile_s)
        if len(seen) == 10:
            store.add(ENVIRONMENT, replace(TRIAL, problem=replace(PROBLEM, shape=GemmShape(9, 9, 9))))
    assert seen[:1500] == [float(i) for i in range(1500)]


def compared(times, candidates):
    return [
        replace(TRIAL, candidate=candidate, phase=Phase.FINAL, samples_us=(time_us,))
        for time_us, candidate in zip(times, candidates, strict=True)
    ]


def test_latest_comparison_that_held_all_candidates_is_found(store):
    a, b, c = (Candidate(Kernel.FP8, CANDIDATE.config.with_(num_stages=n)) for n in (2, 3, 4))
    first, second = compared([1.0, 2.0, 3.0], [a, b, c]), compared([4.0, 5.0], [a, b])
    for trials in (first, second):
        store.add_comparison(ENVIRONMENT, trials)
    store.add(ENVIRONMENT, replace(first[2], samples_us=(9.0,)))
    assert store.find_comparison(ENVIRONMENT, PROBLEM, [b, a]) == [second[1], second[0]]
    assert store.find_comparison(ENVIRONMENT, PROBLEM, [a, c]) == [first[0], first[2]]
    assert store.find_comparison(ENVIRONMENT, PROBLEM, [a, b, c]) == first


def test_trials_of_different_comparisons_never_mix(store):
    a, b = (Candidate(Kernel.FP8, CANDIDATE.config.with_(num_stages=n)) for n in (2, 3))
    store.add_comparison(ENVIRONMENT, compared([1.0], [a]))
    store.add_comparison(ENVIRONMENT, compared([2.0], [b]))
    assert store.find_comparison(ENVIRONMENT, PROBLEM, [a, b]) is None
    assert store.find_comparison(replace(ENVIRONMENT, torch="9"), PROBLEM, [a]) is None
    assert store.find_comparison(ENVIRONMENT, replace(PROBLEM, shape=GemmShape(9, 9, 9)), [a]) is None


def test_comparison_is_kept_whole_or_not_at_all(store):
    a, b = (Candidate(Kernel.FP8, CANDIDATE.config.with_(num_stages=n)) for n in (2, 3))
    whole = compared([1.0, 2.0], [a, b])
    unstorable = replace(whole[1], compile_s=float("nan"))  # SQLite takes NaN for NULL
    with pytest.raises(sqlite3.IntegrityError):
        store.add_comparison(ENVIRONMENT, [whole[0], unstorable])
    assert list(store.trials()) == []
    store.add_comparison(ENVIRONMENT, whole)
    assert [trial for _, trial in store.trials()] == whole
    assert store.find_comparison(ENVIRONMENT, PROBLEM, [a, b]) == whole


def test_snapshot_is_made_once_and_for_each_run_and_name(store):
    made = []

    def make():
        made.append(1)
        return {"1": [len(made), None, "µ"], "tuple": (1, 2)}

    first = store.snapshot("run", "baseline", make)
    assert first == {"1": [1, None, "µ"], "tuple": [1, 2]}
    assert store.snapshot("run", "baseline", make) == first
    assert store.snapshot("run", "priors", make)["1"][0] == 2
    assert store.snapshot("other", "baseline", make)["1"][0] == 3


def test_everything_is_there_after_reopening(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.register(ENVIRONMENT, H200)
        store.add(ENVIRONMENT, TRIAL)
        store.snapshot("run", "baseline", lambda: 1)
    with Store.open(path) as store:
        assert store.device_spec(ENVIRONMENT) == H200
        assert list(store.trials()) == [(ENVIRONMENT, TRIAL)]
        assert store.snapshot("run", "baseline", lambda: 2) == 1
        store.add(ENVIRONMENT, TRIAL)
        assert len(list(store.trials())) == 2
        assert len(store.environments()) == 1


def test_unregistered_environment_has_no_limits(store):
    store.add(ENVIRONMENT, TRIAL)
    assert store.device_spec(ENVIRONMENT) is None
    assert store.device_spec(replace(ENVIRONMENT, torch="9")) is None


def test_threads_share_a_store(store):
    problems = [replace(PROBLEM, shape=GemmShape(m, 512, 1024)) for m in range(1, 5)]

    def work(problem):
        for i in range(50):
            candidate = Candidate(Kernel.FP8, CANDIDATE.config.with_(num_stages=i + 1))
            store.add(ENVIRONMENT, replace(TRIAL, problem=problem, candidate=candidate))

    threads = [threading.Thread(target=work, args=(problem,)) for problem in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in problems:
        stages = [trial.candidate.config.num_stages for _, trial in store.trials(problem=problem)]
        assert stages == list(range(1, 51))


def realistic_trials(count, samples, rng):
    for i in range(count):
        problem = Problem(GemmShape(2 ** (i * 6 // count), 2112, 7168))
        tile = TileConfig(
            16 << i % 5, 32 << i // 5 % 4, 64 << i // 20 % 2, 1 << i // 40 % 4, 4 << i // 160 % 2, 2 + i // 320 % 4
        )
        message = "out of resource: shared memory, Required: 262144" if i % 20 == 0 else ""
        yield Trial(
            problem,
            Candidate(Kernel.FP8, tile),
            TrialStatus.OK,
            samples_us=tuple(rng.uniform(5, 500) for _ in range(samples)),
            message=message,
            compile_s=rng.random(),
            elapsed_s=rng.random(),
        )


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_a_sample_takes_at_most_200_bytes_also_before_the_store_is_closed(tmp_path, samples):
    with Store.open(tmp_path / "store.db") as store:
        for trial in realistic_trials(3000, samples, random.Random(1)):
            store.add(ENVIRONMENT, trial)
        running = sum(file.stat().st_size for file in tmp_path.iterdir())
    closed = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert closed / (3000 * samples) <= 200
    # The write-ahead log comes on top, and stays near its limit however many trials there are.
    assert running - closed < 1.3 * 2**20


ADD_UNTIL_KILLED = """
import sys
from dataclasses import replace
from pathlib import Path
from blockscale.problem import *
from blockscale.store import Store

environment = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1")
store = Store.open(Path(sys.argv[1]))
number = sum(1 for _ in store.trials())
while True:
    config = TileConfig(16, 64, 128, num_stages=number % 40 + 1)
    problem = Problem(GemmShape(number // 40 + 1, 512, 1024))
    store.add(environment, Trial(problem, Candidate(Kernel.FP8, config), TrialStatus.OK, samples_us=(number + 0.5,)))
    number += 1
    print(number, flush=True)
"""


def test_kill_at_any_moment_loses_nothing_acknowledged(tmp_path):
    path = tmp_path / "store.db"
    rng = random.Random(5)
    kept = 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", ADD_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(rng.randrange(1, 120)):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        acknowledged = int((child.stdout.read().splitlines() or [acknowledged])[-1])
        child.wait()
        with Store.open(path) as store:
            samples = [trial.samples_us[0] for _, trial in store.trials()]
        assert kept < acknowledged <= len(samples) <= acknowledged + 1
        assert samples == [number + 0.5 for number in range(len(samples))]
        kept = len(samples)


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from blockscale.errors import IncompleteRunError
from blockscale.problem import *
from blockscale.store import Store

environment = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1")
trial = Trial(Problem(GemmShape(1, 2, 3)), Candidate(Kernel.FP8, TileConfig(16, 64, 128)), TrialStatus.OK)
store = Store.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
kept = 0
try:
    while True:
        store.add(environment, trial)
        kept += 1
except IncompleteRunError as error:
    print(kept, error)
"""


def test_full_disk_ends_the_run_with_advice_and_keeps_what_was_added(tmp_path):
    path = tmp_path / "store.db"
    child = subprocess.run([sys.executable, "-c", FILL_THE_DISK, str(path)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    kept, message = child.stdout.split(" ", 1)
    assert "free some space" in message
    assert str(path) in message
    with Store.open(path) as store:
        assert sum(1 for _ in store.trials()) == int(kept) > 10


def test_failed_add_of_new_values_leaves_the_store_usable(store):
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(IncompleteRunError, match="full"):
        store.add(ENVIRONMENT, replace(TRIAL, message="x" * 10_000))
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.add(ENVIRONMENT, TRIAL)
    assert list(store.trials()) == [(ENVIRONMENT, TRIAL)]


def test_migration_is_atomic_with_its_record(tmp_path):
    connection = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    broken = (*MIGRATIONS, "CREATE TABLE notes (id INTEGER);\nCREATE TABLE trials (id INTEGER);\n")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, broken)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'notes'").fetchone() == (0,)
    mended = (*MIGRATIONS, "CREATE TABLE notes (id INTEGER);\n")
    migrate(connection, mended)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(mended),)


def test_store_of_a_replay_becomes_a_recording_that_replays_alike(tmp_path, store, screen, compare):
    original = ReplayDevice(load_recording(embedded("h200")))
    problem = Problem(GemmShape(16, 2112, 7168))
    candidates = [
        Candidate(Kernel.FP8, TileConfig(16, block_n, 128, 1, warps, 3)) for block_n in (32, 64) for warps in (4, 8)
    ]
    screened, finals = screen(original, problem, candidates), compare(original, problem, candidates)
    store.register(original.environment, original.spec)
    for trial in (*screened, *finals):
        store.add(original.environment, trial)
    assert export_recording(store, tmp_path / "mine.jsonl.gz") == 8
    again = ReplayDevice(load_recording(tmp_path / "mine.jsonl.gz"))
    assert again.spec == original.spec
    assert screen(again, problem, candidates) == screened
    assert compare(again, problem, candidates) == finals
    assert (tmp_path / "mine.jsonl.gz").stat().st_size < 2000
