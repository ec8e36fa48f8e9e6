"""Which GPU of a cluster gets which work."""

from hypothesis import given
from hypothesis import strategies as st

from blockscale.executor.base import Comparison, Screening
from blockscale.executor.ray_queue import WorkQueue
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig

CANDIDATES = [Candidate(Kernel.FP8, TileConfig(16, 32, 128, group_m=g)) for g in range(1, 33)]


def screening(m: int, index: int = 0) -> Screening:
    return Screening(Problem(GemmShape(m, 2112, 7168)), CANDIDATES[index])


def queue_of(*gpus: str, enough: int = 4) -> "WorkQueue[str]":
    queue: WorkQueue[str] = WorkQueue()
    for gpu in gpus:
        queue.join(gpu, enough)
    return queue


def handed(queue: "WorkQueue[str]") -> list[tuple[str, Screening]]:
    return [(gpu, entry.work) for gpu, entry in queue.hand_out()]


def test_problems_go_to_whoever_has_least_in_hand_and_stay_there():
    queue = queue_of("a", "b")
    for index in range(3):
        queue.add(screening(1, index), 0)
    assert handed(queue) == [("a", screening(1, i)) for i in range(3)]
    queue.add(screening(16), 1)
    assert handed(queue) == [("b", screening(16))]
    queue.add(screening(64), 2)
    queue.add(screening(1, 3), 0)
    assert handed(queue) == [("a", screening(1, 3)), ("b", screening(64))]


def test_the_least_is_told_by_expected_seconds_and_not_by_count():
    queue = queue_of("a", "b", enough=8)
    queue.add(screening(4096 * 16), 0)
    queue.add(screening(1), 1)
    queue.add(screening(1, 1), 1)
    handed(queue)
    queue.add(screening(16), 2)
    assert handed(queue) == [("b", screening(16))]


def test_what_no_gpu_has_room_for_waits_and_the_lowest_rank_goes_first():
    queue = queue_of("a", enough=2)
    queue.add(screening(1, 0), 0)
    queue.add(screening(1, 1), 0)
    queue.add(screening(64), 7)
    queue.add(screening(16), 5)
    assert handed(queue) == [("a", screening(1, 0)), ("a", screening(1, 1))]
    queue.add(screening(1, 2), 0)
    assert handed(queue) == [("a", screening(1, 2))], "more of a problem that a GPU has goes to it at once"
    queue.returned("a", screening(1, 0))
    assert handed(queue) == []
    queue.returned("a", screening(1, 1))
    assert handed(queue) == [("a", screening(16))]


def test_the_candidates_of_a_comparison_all_count():
    queue = queue_of("a", enough=4)
    queue.add(Comparison(screening(1).problem, tuple(CANDIDATES[:4])), 0)
    queue.add(screening(16), 1)
    assert [work.candidates for _, work in handed(queue)] == [tuple(CANDIDATES[:4])]


def test_what_a_lost_gpu_had_goes_to_the_others_in_its_old_place():
    queue = queue_of("a", "b", enough=3)
    for m, rank in ((1, 0), (16, 1)):
        for index in range(3):
            queue.add(screening(m, index), rank)
    assert {gpu for gpu, _ in handed(queue)} == {"a", "b"}
    queue.add(screening(64), 2)
    in_hand = queue.leave("a")
    assert [entry.work for entry in in_hand] == [screening(1, index) for index in range(3)]
    for entry in in_hand[1:]:
        queue.put_back(entry)
    assert handed(queue) == []
    for index in range(3):
        queue.returned("b", screening(16, index))
    assert handed(queue) == [("b", screening(1, 1)), ("b", screening(1, 2)), ("b", screening(64))]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 31)), unique=True, max_size=60),
    st.lists(st.sampled_from(["hand out", "return", "lose"]), max_size=40),
)
def test_all_work_is_done_once_and_a_problem_is_with_one_gpu_at_a_time(works, actions):
    queue = queue_of("0", "1", "2")
    at: dict[str, list[Screening]] = {"0": [], "1": [], "2": []}
    waiting, finished = [screening(2**m, index) for m, index in works], []
    while len(finished) < len(works):
        action = actions.pop() if actions else "return"
        if waiting:
            work = waiting.pop()
            queue.add(work, work.problem.shape.M)
        for gpu, entry in queue.hand_out():
            at[gpu].append(entry.work)
        busy = [gpu for gpu, in_hand in at.items() if in_hand]
        for problem in {work.problem for in_hand in at.values() for work in in_hand}:
            assert sum(any(work.problem == problem for work in in_hand) for in_hand in at.values()) == 1
        if action == "lose" and busy and len(at) > 1:
            lost = at.pop(busy[0])
            in_hand = queue.leave(busy[0])
            assert sorted(map(str, lost)) == sorted(str(entry.work) for entry in in_hand)
            for entry in in_hand:
                queue.put_back(entry)
        elif action == "return" and busy:
            work = at[busy[0]].pop(0)
            queue.returned(busy[0], work)
            finished.append(work)
    assert sorted(map(str, finished)) == sorted(str(screening(2**m, index)) for m, index in works)
