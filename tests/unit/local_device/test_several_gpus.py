"""`LocalDevice` on several GPUs: problems are spread over them, and what happens on one does not stop the others."""

import os
import threading
from pathlib import Path

import pytest
from fakes_local import Does
from lanes import PROBLEM, Make, Notes, Try, candidate

from blockscale.engines import engine
from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Comparison, Done, Screening
from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.executor.synthetic import COMPILER, WORKER
from blockscale.measure.compile_pool import PoolSettings
from blockscale.problem import GemmShape, Phase, Problem, Trial, WeightShape
from blockscale.problem import TrialStatus as S
from blockscale.store import Store
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

PROBLEMS = [Problem(GemmShape(16, n, 7168)) for n in (1024, 2112, 4096, 7168)]


def screen_all(device: LocalDevice, works: list[tuple[Problem, int]]) -> dict[int, Trial]:
    """Screen (problem, group) pairs, the problem's place as its rank; trials by group."""
    for problem, group in works:
        device.start(Screening(problem, candidate(group)), PROBLEMS.index(problem))
    trials = [trial for _ in works for trial in device.next_done().trials]
    return {trial.candidate.config.group_m: trial for trial in trials}


def groups_on(notes: Notes, gpu: int) -> set[int]:
    return {int(line.split()[0]) for line in notes("screen", gpu)}


@pytest.mark.parametrize("gpus", [2, 4])
def test_each_process_has_a_gpu_of_its_own_and_hears_what_will_be_tuned(make: Make, notes: Notes, gpus: int) -> None:
    make(gpus=gpus).prepare([PROBLEM])
    assert [notes("start", gpu) for gpu in range(gpus)] == [[str(gpu)] for gpu in range(gpus)]
    assert [notes("prepare", gpu) for gpu in range(gpus)] == [["1"]] * gpus


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_problem_is_measured_on_one_gpu_and_every_gpu_has_some(make: Make, notes: Notes, gpus: int) -> None:
    device = make(gpus=gpus)
    of = {problem: range(100 + 20 * place, 110 + 20 * place) for place, problem in enumerate(PROBLEMS)}
    trials = screen_all(device, [(problem, group) for problem, groups in of.items() for group in groups])
    assert len(trials) == 40
    assert all(t.status is S.OK for t in trials.values())
    for groups in of.values():
        assert len([gpu for gpu in range(gpus) if groups_on(notes, gpu) & set(groups)]) == 1
    assert device.clock().gpus == gpus


def test_finals_run_where_their_problem_was_screened(make: Make, notes: Notes) -> None:
    device = make(gpus=2)
    screen_all(device, [(problem, 100 + place) for place, problem in enumerate(PROBLEMS)])
    for place, problem in enumerate(PROBLEMS):
        device.start(Comparison(problem, (candidate(100 + place), candidate(200 + place))), 0)
    for _ in PROBLEMS:
        assert {t.phase for t in device.next_done().trials} == {Phase.FINAL}
    for gpu in range(2):
        finals = {int(line.split()[0]) for line in notes("finals", gpu)}
        assert finals == groups_on(notes, gpu)


@pytest.mark.parametrize("what", [Does.HANG, Does.DIE, Does.POISON])
def test_what_breaks_the_process_of_one_gpu_costs_a_trial_there(make: Make, notes: Notes, what: Does) -> None:
    device = make(gpus=2, limit_s=2.0)
    trials = screen_all(device, [(PROBLEMS[0], what), (PROBLEMS[1], 100), (PROBLEMS[0], 101), (PROBLEMS[1], 102)])
    assert trials.pop(what).status in (S.TIMEOUT, S.WORKER_DIED, S.ILLEGAL_ACCESS)
    assert [t.status for t in trials.values()] == [S.OK] * 3
    assert sorted(len(notes("start", gpu)) for gpu in range(2)) == [1, 2]


def test_the_others_go_on_while_one_hangs(make: Make) -> None:
    device = make(gpus=2, limit_s=600.0)
    device.start(Screening(PROBLEMS[0], candidate(Does.HANG)), 0)
    for group in range(100, 110):
        device.start(Screening(PROBLEMS[1], candidate(group)), 1)
    assert {device.next_done().work.problem for _ in range(10)} == {PROBLEMS[1]}


def test_a_gpu_that_is_lost_ends_the_run_and_is_named_with_a_way_on(make: Make) -> None:
    device = make(gpus=2)
    for group in (Does.LOSE_GPU, 100):
        device.start(Screening(PROBLEMS[0], candidate(group)), 0)
    assert device.next_done().trials[0].status is S.WORKER_DIED
    with pytest.raises(IncompleteRunError, match=r"GPU [01] is gone: .*fallen off the bus.*goes on") as told:
        device.next_done()
    lost, others = str(told.value).split(" is gone: ")
    assert ("--gpus 1 " in others) == (lost == "GPU 0")


def test_a_gpu_that_does_not_start_is_named_with_a_way_on(make: Make, tmp_path: Path) -> None:
    (tmp_path / "gone1").touch()
    with pytest.raises(IncompleteRunError, match=r"of GPU 1 does not start: .*--gpus 0,2 goes on without it"):
        make(gpus=3)


def test_gpus_that_are_not_alike_are_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "old1").touch()
    with pytest.raises(InputError, match=r"GPU 0 .* and GPU 1 .* are not alike.*--gpus 0 and --gpus 1"):
        make(gpus=2)


def test_closing_ends_them_all_and_who_waits_for_them(make: Make, notes: Notes) -> None:
    device = make(gpus=2, limit_s=600.0)
    for problem in PROBLEMS[:2]:
        device.start(Screening(problem, candidate(Does.HANG)), 0)
    ended: list[Done | IncompleteRunError] = []

    def wait() -> None:
        try:
            ended.append(device.next_done())
        except IncompleteRunError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not all(notes("screen", gpu) for gpu in range(2)):
        os.sched_yield()
    device.close()
    waiting.join()
    assert isinstance(ended[0], IncompleteRunError)
    assert not [t for t in threading.enumerate() if t.name == "blockscale-measuring"]


def test_warnings_say_of_which_gpu_they_are(make: Make, screen: Try) -> None:
    device = make(gpus=2)
    screen(device, PROBLEM, [candidate(Does.CAPPED)])
    said = device.warnings()
    for gpu in range(2):
        assert f"GPU {gpu}: 1 other process uses this GPU" in said
    assert len([text for text in said if "power limit" in text]) == 1


def test_runs_on_1_2_and_4_gpus_try_the_same_and_end_in_the_same_files(tmp_path: Path) -> None:
    found = []
    for gpus in (1, 2, 4):
        folder = tmp_path / str(gpus)
        folder.mkdir()
        pool = PoolSettings(workers=1, function=COMPILER)
        device = LocalDevice(LocalSettings(tuple(range(gpus)), folder / "cache", pool=pool, worker=WORKER))
        weights = (WeightShape(2112, 7168), WeightShape(24576, 1536))
        request = TuneRequest(weights, (1, 64), (("sglang", folder / "out"),), trials=8)
        with Store.open(folder / "s.db") as store:
            run_tune(request, [engine("sglang")], device, store, lambda event: None)
            tried = {(t.problem, t.candidate, t.phase, t.samples_us) for _, t in store.trials()}
        device.close()
        found.append((tried, {path.name: path.read_bytes() for path in (folder / "out").glob("N=*.json")}))
    assert len(found[0][1]) == 2
    assert found[0] == found[1] == found[2]
