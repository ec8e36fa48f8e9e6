"""Measuring processes that die, hang, lie and leak in the middle of runs: each costs one trial, and nothing else.

The runs are the command's own, on synthetic GPUs (`tune_synthetic.py`). The search is random: what it asks of a problem
depends on nothing else, so a mishap on one problem must leave all others as they were.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blockscale.executor.synthetic import Mishap, SyntheticPlan
from blockscale.problem import Phase, Trial, TrialStatus
from blockscale.store import Store

PROGRAM = [sys.executable, str(Path(__file__).with_name("tune_synthetic.py"))]
TUNE = ["tune", "--N", "2112", "--K", "7168", "--engine", "sglang", "--search", "random", "--trials", "6", "--yes"]
BATCH_SIZES = ["1", "16", "64", "256", "1024", "4096"]
LIMIT_S = "1"  # for an answer
S = TrialStatus

LEAVES = {
    Mishap.DIE: (S.WORKER_DIED, "died with signal 9"),
    Mishap.FAULT: (S.WORKER_DIED, "died with signal 11"),
    Mishap.HANG: (S.TIMEOUT, "no result within 1 s"),
    Mishap.STOP: (S.TIMEOUT, "no result within 1 s"),
    Mishap.POISON: (S.ILLEGAL_ACCESS, "illegal memory access"),
    Mishap.LEAK: (S.OUT_OF_RESOURCES, "MemoryError"),
    Mishap.WRONG: (S.WRONG_RESULT, "off"),
    Mishap.GARBAGE: (S.WORKER_DIED, "unreadable answer"),
    Mishap.HALF: (S.WORKER_DIED, "stopped in the middle of an answer"),
    Mishap.NONSENSE: (S.WORKER_DIED, "unreadable answer"),
}


def command(gpus: int, *more: str) -> list[str]:
    return [*PROGRAM, str(gpus), LIMIT_S, *TUNE, "--batch-sizes", *BATCH_SIZES, *more]


def tune(folder: Path, gpus: int, plan: SyntheticPlan | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(plan.save() if plan else {})}
    return subprocess.run(command(gpus), cwd=folder, env=environment, capture_output=True, encoding="utf-8")


def entries(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("configs/sglang/N=*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def stored(folder: Path) -> list[Trial]:
    with Store.open(folder / "blockscale.db") as store:
        return [trial for _, trial in store.trials()]


@dataclass(frozen=True)
class Run:
    """What a run left."""

    entries: dict[str, Any]
    trials: list[Trial]

    def most_common(self, phase: Phase) -> list[tuple[str, set[int]]]:
        """Candidates with the batch sizes on which they were tried in a phase, those on most first."""
        tried: dict[str, set[int]] = {}
        for trial in self.trials:
            if trial.phase is phase:
                tried.setdefault(str(trial.candidate), set()).add(trial.problem.shape.M)
        return sorted(tried.items(), key=lambda item: (-len(item[1]), item[0]))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing befalls."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = tune(folder, 1)
    assert done.returncode == 0, done.stderr
    return Run(entries(folder), stored(folder))


def assert_only_these_suffered(folder: Path, hit: set[int], undisturbed: Run) -> None:
    """All keys are there, and those of problems that were not hit are as in an undisturbed run."""
    found = entries(folder)
    assert list(found) == BATCH_SIZES
    spared = [m for m in BATCH_SIZES if int(m) not in hit]
    assert {m: found[m] for m in spared} == {m: undisturbed.entries[m] for m in spared}


def log_of(plan: SyntheticPlan) -> list[tuple[int, str, int, str]]:
    """Process, phase, M and candidate of each trial that was begun."""
    lines = [line.split(" ", 4) for line in plan.log.read_text().splitlines()]
    return [(int(pid), phase, int(m.removeprefix("M=")), rest) for pid, phase, m, _, rest in lines]


def hits(plan: SyntheticPlan) -> list[tuple[int, str, int, str]]:
    """The trials that went wrong, of those that the plan counts; a run may end before the last of them."""
    log = log_of(plan)
    return [log[number - 1] for number in plan.at_trial if number <= len(log)]


def failures(folder: Path) -> tuple[list[Trial], set[int]]:
    """Failed trials, and the M of problems on which a candidate was given up that had been hit twice by chance."""
    failed = [t for t in stored(folder) if not t.status.timed]
    given_up = [t for t in failed if t.message.startswith("not tried")]
    return [t for t in failed if t not in given_up], {t.problem.shape.M for t in given_up}


def assert_each_cost_its_trial(folder: Path, hit: list[tuple[int, str, int, str]], undisturbed: Run) -> list[Trial]:
    """The failed trials: those screenings that were hit, and finalists at most; the rest is as undisturbed."""
    failed, given_up = failures(folder)
    screened = sorted((m, candidate) for _, phase, m, candidate in hit if phase == Phase.SCREEN)
    assert sorted((t.problem.shape.M, str(t.candidate)) for t in failed if t.phase is Phase.SCREEN) == screened
    assert len(failed) <= len(hit), "finalists are compared again, without the one that did it"
    assert_only_these_suffered(folder, {m for _, _, m, _ in hit} | given_up, undisturbed)
    return failed


@pytest.mark.parametrize(("mishap", "gpus"), [(mishap, (1, 2, 4)[i % 3]) for i, mishap in enumerate(LEAVES)])
def test_a_mishap_costs_its_trial_wherever_in_a_run_it_comes(
    mishap: Mishap, gpus: int, undisturbed: Run, tmp_path: Path
) -> None:
    trials = len(undisturbed.trials)
    plan = SyntheticPlan(tmp_path, at_trial=dict.fromkeys((1, trials // 2, trials - 2), mishap))
    done = tune(tmp_path, gpus, plan)
    assert done.returncode == 0, done.stderr
    failed = assert_each_cost_its_trial(tmp_path, hits(plan), undisturbed)
    status, message = LEAVES[mishap]
    assert {t.status for t in failed} == {status}
    assert all(message in t.message for t in failed), failed[0].message


def test_a_kernel_that_is_wrong_once_in_50_launches_is_not_chosen(undisturbed: Run, tmp_path: Path) -> None:
    culprit, hit = undisturbed.most_common(Phase.FINAL)[-1]  # the first ones are defaults
    plan = SyntheticPlan(tmp_path, on_candidate={culprit: Mishap.WRONG_ONCE_IN_50})
    done = tune(tmp_path, 2, plan)
    assert done.returncode == 0, done.stderr
    tried = [t for t in stored(tmp_path) if str(t.candidate) == culprit]
    assert {(t.phase, t.status) for t in tried} == {(Phase.SCREEN, S.OK), (Phase.FINAL, S.WRONG_RESULT)}
    assert_only_these_suffered(tmp_path, hit, undisturbed)
    assert not any(entry in [t.candidate.config.to_entry() for t in tried] for entry in entries(tmp_path).values())


def test_a_candidate_that_kills_wherever_it_is_tried_is_given_up(undisturbed: Run, tmp_path: Path) -> None:
    culprit, hit = undisturbed.most_common(Phase.SCREEN)[0]
    assert len(hit) >= 3
    plan = SyntheticPlan(tmp_path, on_candidate={culprit: Mishap.DIE})
    done = tune(tmp_path, 1, plan)
    assert done.returncode == 0, done.stderr
    assert len([candidate for *_, candidate in log_of(plan) if candidate == culprit]) == 2
    given_up = [t for t in stored(tmp_path) if str(t.candidate) == culprit]
    assert len(given_up) == len(hit), "on each problem the reason is kept"
    assert not any(t.status.timed for t in given_up)
    assert_only_these_suffered(tmp_path, hit, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_workers_that_somebody_kills_or_stops_are_replaced(
    number: signal.Signals, gpus: int, undisturbed: Run, tmp_path: Path
) -> None:
    plan = SyntheticPlan(tmp_path, trial_s=0.02)
    environment = {**os.environ, **plan.save()}
    run = subprocess.Popen(
        command(gpus), cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    struck = 0
    for after in (1, 12, 24, 36):
        while len(log := log_of(plan) if plan.log.exists() else []) < after and run.poll() is None:
            time.sleep(0.005)
        if run.poll() is None:
            os.kill(log[-1][0], number)
            struck += 1
    _, error = run.communicate()
    assert run.returncode == 0, error
    failed, given_up = failures(tmp_path)
    assert len(failed) <= struck
    assert {t.status for t in failed} <= {S.WORKER_DIED if number is signal.SIGKILL else S.TIMEOUT}
    assert_only_these_suffered(tmp_path, {t.problem.shape.M for t in failed} | given_up, undisturbed)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_that_falls_off_the_bus_ends_the_run_and_the_same_command_goes_on(
    gpus: int, undisturbed: Run, tmp_path: Path
) -> None:
    plan = SyntheticPlan(tmp_path, at_trial={20: Mishap.GPU_LOST})
    done = tune(tmp_path, gpus, plan)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "fallen off the bus" in done.stderr
    kept = stored(tmp_path)
    assert len(kept) >= 18
    plan.lost.unlink()
    assert tune(tmp_path, gpus).returncode == 0
    trials = stored(tmp_path)
    assert trials[: len(kept)] == kept
    tried = [(t.problem, t.candidate, t.phase) for t in trials]
    assert len(set(tried)) == len(tried), "nothing is measured again"
    assert_each_cost_its_trial(tmp_path, hits(plan), undisturbed)
