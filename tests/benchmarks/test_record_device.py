"""Recording full tables: order, first looks, going on, stopping in time."""

from collections import Counter
from functools import cache
from itertools import count, pairwise

import pytest
import record_device
from record_device import Recorder, Table, candidates, hopper_kept, left_to_try, shipped_tables

from blockscale.costmodel import must_spill
from blockscale.executor.base import Done
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
    WeightShape,
)
from blockscale.store import Store
from blockscale.tuning.request import STOCK_BATCH_SIZES

NEVER = float("inf")
WEIGHT = WeightShape(7168, 256)
TABLES = [Table(engine, WEIGHT, m) for engine in ("sglang", "vllm") for m in (16, 1, 256)]
ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1")


@cache
def wanted_of(table):
    return frozenset(candidates(table, H200))


class FakeDevice:
    """Finishes work by rank, in the time that its config's complexity says; keeps what was asked."""

    spec = H200

    def __init__(self, environment=ENVIRONMENT):
        self.environment = environment
        self.asked = []
        self.most_at_work = 0
        self._at_work = []

    def prepare(self, problems):
        assert not self._at_work, "a real device would mistake the answers of its work"
        self.prepared = problems

    def start(self, work, rank):
        self.asked.append(work)
        self._at_work.append((rank, len(self.asked), work))
        self.most_at_work = max(self.most_at_work, len(self._at_work))

    def next_done(self):
        first = min(self._at_work, key=lambda each: each[:2])
        self._at_work.remove(first)
        work = first[2]
        config = work.candidate.config
        time_us = 10.0 + config.block_m / config.num_stages
        coarse = work.best_us is not None and time_us > 1.25 * work.best_us
        status = TrialStatus.COARSE if coarse else TrialStatus.OK
        return Done(work, (Trial(work.problem, work.candidate, status, samples_us=(time_us,)),))


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        yield store


def record(device, store, tables=TABLES, until_s=NEVER, **settings):
    said = []
    recorder = Recorder(device, store, tables, said.append, **settings)
    recorder.run(until_s)
    return recorder, said


def asked_of(device, table):
    return [w for w in device.asked if w.problem == table.problem and w.candidate in wanted_of(table)]


def test_shipped_tables_come_in_their_order_each_once():
    tables = shipped_tables()
    assert len(tables) == len(set(tables)) == 160
    assert tables[0] == Table("sglang", WeightShape(7168, 2304), 16)
    assert tables[6] == Table("vllm", WeightShape(7168, 2304), 16)
    assert Counter(t.engine for t in tables) == {"sglang": 84, "vllm": 76}
    assert {t.m for t in tables if t.weight == WeightShape(512, 7168) and t.engine == "sglang"} == set(
        STOCK_BATCH_SIZES
    )


def test_given_weights_take_the_place_of_the_shipped_ones():
    tables = record_device.chosen_tables(["vllm"], [WEIGHT], [3, 5])
    assert tables == [Table("vllm", WEIGHT, 3), Table("vllm", WEIGHT, 5)]
    ones = record_device.chosen_tables(["sglang"], [], [1])
    assert {(t.engine, t.m) for t in ones} == {("sglang", 1)}
    assert len(ones) == 10


def test_every_candidate_of_every_table_is_tried_once_and_kept(store):
    device = FakeDevice()
    recorder, said = record(device, store)
    wanted = Counter((t.problem, c) for t in TABLES for c in wanted_of(t))
    assert set(wanted.values()) == {1}
    assert Counter((w.problem, w.candidate) for w in device.asked) == wanted
    assert Counter((t.problem, t.candidate) for _, t in store.trials()) == wanted
    assert store.device_spec(ENVIRONMENT) == H200
    assert recorder.trials == sum(wanted.values())
    assert recorder.left() == "left: 0 trials of 0 problems, and 0 problems not looked at"
    assert [line.partition(":")[0] for line in said] == [f"{t.engine} {t.problem}" for t in TABLES]


def test_the_default_comes_first_then_the_most_promising():
    first, second, *rest = candidates(Table("sglang", WEIGHT, 16), H200)
    assert first == Candidate(Kernel.FP8, TileConfig(64, 128, 128, 1, 4, 3))
    assert second.config.block_m == 16
    assert len({first, second, *rest}) == len(rest) + 2
    assert not any(must_spill(c.config, H200) for c in rest)
    assert {c.kernel for c in rest} == {Kernel.FP8, Kernel.FP8_HOPPER}


def test_later_candidates_are_held_against_the_best_of_their_own_engine(store):
    device = FakeDevice()
    record(device, store)
    for table in TABLES:
        bests = [w.best_us for w in asked_of(device, table)]
        assert bests[0] is None
        assert bests.count(None) < 64
        assert all(a >= b for a, b in pairwise(b for b in bests if b is not None))
        first = asked_of(device, table)[: bests.count(None)]
        times = [store.find(ENVIRONMENT, w.problem, w.candidate, Phase.SCREEN).time_us for w in first]
        assert bests[-1] <= min(times)


def test_problems_ahead_are_at_work_while_the_first_is_measured(store):
    device = FakeDevice()
    record(device, store)
    first_of = [device.asked.index(asked_of(device, t)[0]) for t in TABLES]
    last_of_the_first = device.asked.index(asked_of(device, TABLES[0])[-1])
    assert sum(place < last_of_the_first for place in first_of[1:]) >= 2
    assert device.most_at_work <= 1024


def test_stopped_in_time_the_same_command_goes_on_with_the_rest(store):
    ticks = count()
    device = FakeDevice()
    stopped, _ = record(device, store, until_s=300, clock=lambda: next(ticks))
    assert 0 < stopped.trials < 300
    assert "left: 0 trials" not in stopped.left()
    held = {(t.problem, t.candidate) for _, t in store.trials()}
    again = FakeDevice()
    record(again, store)
    asked = {(w.problem, w.candidate) for w in again.asked}
    everything = {(t.problem, c) for t in TABLES for c in wanted_of(t)}
    assert asked | held == everything
    assert len(again.asked) == len(asked)
    unsettled = {
        (p, c) for p, c in asked & held if store.find(ENVIRONMENT, p, c, Phase.SCREEN).status is TrialStatus.OK
    }
    assert asked & held == unsettled, "only first looks near the best are tried again"
    finished = FakeDevice()
    _, said = record(finished, store)
    assert (finished.asked, said) == ([], [])


def test_trials_of_another_environment_count_where_that_is_asked_for(store):
    record(FakeDevice(), store, TABLES[:1])
    other = Environment("NVIDIA H200", "sm_90", "590", "2.12", "3.7", "def", "0.2")
    counted = FakeDevice(other)
    record(counted, store, TABLES[:1], any_environment=True)
    assert counted.asked == []
    anew = FakeDevice(other)
    record(anew, store, TABLES[:1])
    assert len(anew.asked) == len(wanted_of(TABLES[0]))


def test_first_look_near_the_best_is_no_answer():
    problem = Problem(GemmShape(16, 7168, 256))
    wanted = [Candidate(Kernel.FP8, TileConfig(16, 32, 128, 1, 4, stages)) for stages in (1, 2, 3, 4, 5, 6)]

    def trial(place, status, *samples_us):
        return Trial(problem, wanted[place], status, samples_us=samples_us)

    held = [
        trial(0, TrialStatus.COARSE, 12.0),
        trial(1, TrialStatus.OK, 10.0),
        trial(2, TrialStatus.COARSE, 13.0),
        trial(3, TrialStatus.COMPILE_ERROR),
        trial(4, TrialStatus.OK, 11.0),
        trial(4, TrialStatus.COARSE, 9.0),
    ]
    left, best_us = left_to_try(wanted, held)
    assert left == [wanted[0], wanted[5]]
    assert best_us == 10.0
    assert left_to_try(wanted, []) == (wanted, None)


@pytest.mark.parametrize(
    ("m", "n", "config", "kept"),
    [
        (4096, 7168, TileConfig(64, 32, 64, 16, 4, 2), True),
        (16, 7168, TileConfig(16, 32, 128, 1, 4, 3, split_k=8), True),
        (16, 7168, TileConfig(32, 32, 128, 1, 4, 3, split_k=8), False),
        (16, 7168, TileConfig(16, 32, 64, 1, 4, 3, split_k=8), False),
        (16, 7168, TileConfig(16, 32, 128, 1, 4, 2, split_k=8), False),
        (64, 7168, TileConfig(64, 32, 128, 1, 4, 3, swap_ab=True), True),
        (256, 4608, TileConfig(64, 128, 128, 1, 4, 3, split_k=4), True),
        (1024, 512, TileConfig(64, 128, 128, 1, 4, 3, split_k=4), True),
        (1536, 512, TileConfig(64, 128, 128, 1, 4, 3, split_k=4), False),
    ],
)
def test_swap_and_split_are_tried_where_few_rows_leave_the_gpu_idle(m, n, config, kept):
    assert hopper_kept(Problem(GemmShape(m, n, 7168)), config) is kept
