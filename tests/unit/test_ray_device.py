"""The driver's side of a cluster, and the actor's, without Ray between them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Semaphore

import pytest

from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Comparison, DeviceClock, Done, Screening
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.executor.ray_actor import GpuActor, GpuDescription, Report
from blockscale.executor.ray_device import Event, Joined, Lost, Member, RayDevice
from blockscale.executor.ray_queue import Entry
from blockscale.executor.replay import ReplayDevice
from blockscale.executor.synthetic import COMPILER, WORKER
from blockscale.measure.compile_pool import PoolSettings
from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, TileConfig, TrialStatus
from blockscale.recording import embedded, load_recording

PROBLEMS = [Problem(GemmShape(m, 2112, 7168)) for m in (1, 16, 64)]
CANDIDATES = [Candidate(Kernel.FP8, TileConfig(16, n, 128, g, 4, s)) for n in (32, 64) for g in (1, 16) for s in (3, 4)]


@pytest.fixture(scope="module")
def recording():
    return load_recording(embedded("h200"))


class Fleet:
    """GPUs that answer from a recording when a test lets them, and are lost when it says so."""

    def __init__(self, recording, gpus: int) -> None:
        self._recording = recording
        self._devices: dict[Member, ReplayDevice] = {}
        self._events: deque[Event] = deque()
        self.spare = 0
        self.growing = 0
        self.closed = 0
        self.sent: list[tuple[Member, Screening | Comparison]] = []
        self.members = tuple(self._member(number) for number in range(gpus))

    def _member(self, number: int) -> Member:
        device = ReplayDevice(self._recording)
        member = Member(number, GpuDescription(f"GPU {number}", device.spec, device.environment, 0))
        self._devices[member] = device
        return member

    def prepare(self, problems: Sequence[Problem]) -> None:
        for device in self._devices.values():
            device.prepare(problems)

    def start(self, member: Member, entry: Entry) -> None:
        self.sent.append((member, entry.work))
        self._devices[member].start(entry.work, entry.rank)

    def answer(self, member: Member, works: int = 1) -> None:
        device = self._devices[member]
        done = tuple(device.next_done() for _ in range(works))
        self._events.append((member, Report(done, device.clock())))

    def lose(self, member: Member) -> None:
        del self._devices[member]
        self._events.append((member, Lost("is gone: its node died")))

    def next_event(self) -> Event | None:
        if self._events:
            return self._events.popleft()
        if self.growing:
            self.growing -= 1
            return self._member(len(self.members)), Joined()
        for member in self._devices:  # as an actor with nothing to say does
            self._events.append((member, Report((), DeviceClock())))
        return None

    def ask_for_one_more(self) -> None:
        if self.spare:
            self.spare -= 1
            self.growing += 1

    def may_grow(self) -> bool:
        return self.growing > 0

    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def fleet(recording):
    return Fleet(recording, 2)


@pytest.fixture
def device(fleet, recording):
    device = RayDevice(fleet, ReplayDevice(recording).can_try)
    device.prepare(PROBLEMS)
    return device


def screenings(problem: Problem, count: int) -> list[Screening]:
    return [Screening(problem, candidate) for candidate in CANDIDATES[:count]]


def start(device: RayDevice, works: Sequence[Screening | Comparison], rank: int = 0) -> None:
    for work in works:
        device.start(work, rank)


def finished(device: RayDevice, count: int) -> list[Done]:
    return [device.next_done() for _ in range(count)]


def test_trials_are_those_of_a_recorded_gpu(device, fleet, recording, screen):
    works = [*screenings(PROBLEMS[0], 3), *screenings(PROBLEMS[1], 3)]
    start(device, works)
    first, second = fleet.members
    fleet.answer(second, 3)
    fleet.answer(first, 3)
    trials = [trial for done in finished(device, 6) for trial in done.trials]
    here = ReplayDevice(recording)
    expected = [trial for problem in PROBLEMS[:2] for trial in screen(here, problem, CANDIDATES[:3])]
    assert sorted(trials, key=repr) == sorted(expected, key=repr)
    assert device.clock().screening_s == pytest.approx(here.clock().screening_s)
    assert device.clock().gpus == 2
    assert device.clock().recorded


def test_a_lost_gpu_costs_the_trial_it_was_at_and_the_rest_is_done_elsewhere(device, fleet):
    start(device, screenings(PROBLEMS[0], 3))
    start(device, screenings(PROBLEMS[1], 2), rank=1)
    first, second = fleet.members
    fleet.lose(first)
    fleet.answer(second, 2)
    done = finished(device, 3)
    died = [d for d in done if d.trials[0].status is TrialStatus.WORKER_DIED]
    assert [d.work for d in died] == screenings(PROBLEMS[0], 1)
    assert "GPU 0 is gone: its node died" in died[0].trials[0].message
    fleet.answer(second, 2)
    assert {d.work for d in finished(device, 2)} == set(screenings(PROBLEMS[0], 3)[1:])
    (said,) = device.warnings()
    assert "GPU 0 is gone" in said
    assert "counts as failed" in said
    assert device.warnings() == []


def test_a_comparison_that_a_gpu_was_lost_with_starts_again_once(device, fleet):
    work = Comparison(PROBLEMS[0], tuple(CANDIDATES[:2]))
    start(device, [work])
    first, second = fleet.members
    fleet.lose(first)
    start(device, screenings(PROBLEMS[1], 1))
    fleet.answer(second)
    assert device.next_done().work.problem == PROBLEMS[1]
    assert fleet.sent[-1] == (second, work)
    fleet.answer(second)
    assert [trial.phase for trial in device.next_done().trials] == [Phase.FINAL] * 2


def test_a_comparison_that_two_gpus_were_lost_with_has_failed(fleet, recording):
    fleet = Fleet(recording, 3)
    device = RayDevice(fleet, ReplayDevice(recording).can_try)
    work = Comparison(PROBLEMS[0], tuple(CANDIDATES[:2]))
    start(device, [work])
    fleet.lose(fleet.members[0])
    start(device, screenings(PROBLEMS[1], 1))
    fleet.answer(fleet.members[1])
    assert device.next_done().work.problem == PROBLEMS[1]
    second, again = fleet.sent[-1]
    assert again == work
    fleet.lose(second)
    assert [trial.status for trial in device.next_done().trials] == [TrialStatus.WORKER_DIED] * 2


def test_a_candidate_that_gpus_were_lost_with_twice_is_not_sent_again(recording):
    fleet = Fleet(recording, 3)
    device = RayDevice(fleet, ReplayDevice(recording).can_try)
    for problem, member in zip(PROBLEMS[:2], fleet.members, strict=False):
        start(device, screenings(problem, 1))
        fleet.lose(member)
        assert device.next_done().trials[0].status is TrialStatus.WORKER_DIED
    sent = len(fleet.sent)
    start(device, screenings(PROBLEMS[2], 1))
    (trial,) = device.next_done().trials
    assert not trial.status.timed
    assert "before" in trial.message
    assert len(fleet.sent) == sent


def test_a_gpu_that_joins_takes_the_place_of_a_lost_one(device, fleet):
    fleet.spare = 1
    start(device, screenings(PROBLEMS[0], 2))
    first, second = fleet.members
    fleet.answer(first)
    assert device.next_done().work == screenings(PROBLEMS[0], 1)[0]
    fleet.lose(first)
    fleet.lose(second)
    (died,) = finished(device, 1)
    assert died.trials[0].status is TrialStatus.WORKER_DIED
    start(device, screenings(PROBLEMS[2], 1))
    assert fleet.sent[-1][0].number == 2
    fleet.answer(fleet.sent[-1][0])
    assert device.next_done().work.problem == PROBLEMS[2]


def test_a_gpu_that_was_lost_before_it_measured_anything_is_not_replaced(device, fleet):
    fleet.spare = 1
    start(device, screenings(PROBLEMS[0], 1))
    for member in fleet.members:
        fleet.lose(member)
    with pytest.raises(IncompleteRunError):
        device.next_done()
    assert fleet.spare == 1


def test_without_any_gpu_the_run_ends_and_nothing_is_held_against_the_last_trial(device, fleet):
    start(device, screenings(PROBLEMS[0], 2))
    for member in reversed(fleet.members):
        fleet.lose(member)
    with pytest.raises(
        IncompleteRunError, match=r"no GPU of the cluster is left \(GPU 0 is gone: its node died\).*same command"
    ):
        device.next_done()


def test_what_is_finished_comes_before_the_news_that_nothing_is_left(device, fleet):
    start(device, screenings(PROBLEMS[0], 2))
    first, second = fleet.members
    fleet.answer(first)
    fleet.lose(first)
    fleet.lose(second)
    assert device.next_done().trials[0].status.timed
    with pytest.raises(IncompleteRunError):
        device.next_done()


def test_problems_are_refused_as_by_the_gpus_and_not_while_work_is_under_way(device):
    with pytest.raises(InputError, match="not recorded"):
        device.prepare([Problem(GemmShape(16, 999, 7168))])
    start(device, screenings(PROBLEMS[0], 1))
    with pytest.raises(RuntimeError, match="before any work"):
        device.prepare(PROBLEMS)


def test_waiting_for_nothing_is_a_mistake(device):
    with pytest.raises(RuntimeError, match="nothing was started"):
        device.next_done()


@pytest.fixture
def actor(recording):
    actor = GpuActor(lambda: ReplayDevice(recording), answers_at_once=True)
    actor.open()
    yield actor
    actor.close()


def collected(actor: GpuActor, count: int) -> list[Done]:
    done: list[Done] = []
    while len(done) < count:
        done += actor.collect(60).done
    return done


def test_an_actor_hands_over_all_that_is_finished_and_its_clock(actor):
    actor.prepare(PROBLEMS)
    works = screenings(PROBLEMS[0], 4)
    for work in works:
        actor.start(work, 0)
    assert [done.work for done in collected(actor, 4)] == works
    report = actor.collect(0)
    assert report.done == ()
    assert report.clock.screening_s > 0


def test_an_actor_tells_of_a_lost_device_when_all_that_was_finished_is_handed_over(recording):
    plan = FaultPlan(at_trial={3: Fault.DEVICE_LOST})
    actor = GpuActor(lambda: FaultyDevice(ReplayDevice(recording), plan), answers_at_once=True)
    actor.open()
    for work in screenings(PROBLEMS[0], 4):
        actor.start(work, 0)
    assert len(collected(actor, 2)) == 2
    for _ in range(2):
        with pytest.raises(IncompleteRunError, match="lost after 2 trials"):
            actor.collect(60)


def test_work_reaches_a_device_while_it_is_waited_for(recording):
    class Slow(ReplayDevice):
        """Hands nothing back before it was given a second piece of work."""

        def __init__(self) -> None:
            super().__init__(recording)
            self._given = Semaphore(0)

        def start(self, work, rank):
            super().start(work, rank)
            self._given.release()

        def next_done(self):
            for _ in range(2):
                assert self._given.acquire(timeout=60)
            self._given.release(2)
            return super().next_done()

    actor = GpuActor(Slow, answers_at_once=False)
    actor.open()
    for work in screenings(PROBLEMS[0], 2):
        actor.start(work, 0)
    assert len(collected(actor, 2)) == 2
    actor.close()


def test_an_actor_says_where_its_gpu_is(recording, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    about = GpuActor(lambda: ReplayDevice(recording), answers_at_once=True).open()
    assert about.name == "GPU 5 of node-7"
    assert replace(about, name="") == GpuDescription("", recording.spec, ReplayDevice(recording).environment, 0)


def test_an_actor_feeds_the_processes_of_a_gpu(tmp_path):
    settings = LocalSettings(cache_dir=tmp_path, pool=PoolSettings(workers=2, function=COMPILER), worker=WORKER)
    actor = GpuActor(partial(LocalDevice, settings), answers_at_once=False)
    try:
        assert actor.open().compile_workers == 2
        actor.prepare(PROBLEMS)
        works = [work for problem in PROBLEMS for work in screenings(problem, 8)]
        for work in works:
            actor.start(work, PROBLEMS.index(work.problem))
        done = collected(actor, len(works))
        assert {one.work for one in done} == set(works)
        assert all(trial.status is not TrialStatus.WORKER_DIED for one in done for trial in one.trials)
        assert actor.collect(0).clock.compilations > 0
        assert actor.warnings() == []
    finally:
        actor.close()
