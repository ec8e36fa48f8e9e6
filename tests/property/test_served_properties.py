"""What holds for every log and list: counts add up, bad rows are one message, keys are the best there are."""

import json
import math
from collections import Counter
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import InputError
from blockscale.problem import GemmShape, Problem, QuantScheme, WeightShape
from blockscale.shapes.served import ServedShapes, read_served, weighed_batch_sizes
from blockscale.tuning.request import STOCK_BATCH_SIZES

SIZES = st.integers(1, 16384)
WEIGHTS = st.builds(WeightShape, SIZES, SIZES)
COUNTS = st.integers(1, 10_000)
ROWS = st.lists(st.tuples(SIZES, st.sampled_from([(2112, 7168), (7168, 2048), (512, 7168)]), COUNTS), min_size=1)
DEFAULT = (1, 16, 64)

HEAD = "[2026-01-05 10:00:00 TP0] "
MISSING = "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at "


def read_text(text: str) -> ServedShapes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "served")
        path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
        return read_served(path)


def message_or_empty(text: str) -> str:
    """Why the text is refused, empty where it is read, which takes a shape."""
    try:
        found = read_text(text)
    except InputError as error:
        return str(error)
    assert found.launches
    return ""


def served(by_weight: dict[WeightShape, dict[int, int]], passes: dict[int, int] | None = None) -> ServedShapes:
    return ServedShapes(by_weight, None, (), passes=passes or {})


def load(weight: WeightShape, m: int) -> float:
    """Time of a launch: the larger of its bytes and its FLOPs at 412 FLOP a byte."""
    problem = Problem(GemmShape(m, weight.N, weight.K))
    return max(problem.bytes_moved, problem.flops / 412)


def distance(launches: dict[WeightShape, dict[int, int]], keys: tuple[int, ...]) -> float:
    """The weighed distance of all launches from the keys that serve them, as an engine finds them."""
    total = 0.0
    for weight, by_m in launches.items():
        for m, count in by_m.items():
            key = min(sorted(keys), key=lambda key: abs(key - m))
            total += count * load(weight, m) * abs(math.log2(m / key))
    return total


def uniform_choice(sizes: list[int], most: int) -> tuple[int, ...]:
    return tuple(sorted({sizes[round(i * (len(sizes) - 1) / (most - 1))] for i in range(most)}))


LAUNCHES = st.dictionaries(WEIGHTS, st.dictionaries(SIZES, COUNTS, min_size=1, max_size=30), min_size=1, max_size=4)


@given(LAUNCHES, st.integers(2, 18))
@settings(deadline=None)
def test_keys_are_batch_sizes_seen_the_outermost_among_them_and_no_worse_than_evenly_spread_ones(launches, most):
    seen = sorted({m for by_m in launches.values() for m in by_m})
    keys = weighed_batch_sizes(served(launches), DEFAULT, most)
    assert list(keys) == sorted(set(keys))
    assert set(keys) <= set(seen)
    assert {seen[0], seen[-1]} <= set(keys)
    assert len(keys) <= most
    if len(seen) <= most:
        assert list(keys) == seen
    assert distance(launches, keys) <= distance(launches, uniform_choice(seen, most)) * (1 + 1e-9) + 1e-6


@given(st.dictionaries(WEIGHTS, st.dictionaries(SIZES, COUNTS, min_size=1, max_size=5), min_size=1, max_size=2))
@settings(deadline=None)
def test_keys_are_the_best_of_all_choices(launches):
    seen = sorted({m for by_m in launches.values() for m in by_m})
    best = min(
        distance(launches, (seen[0], *inner, seen[-1])) for size in range(3) for inner in combinations(seen[1:-1], size)
    )
    found = distance(launches, weighed_batch_sizes(served(launches), DEFAULT, 4))
    assert math.isclose(found, best, rel_tol=1e-9, abs_tol=1e-6)


@given(LAUNCHES, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_keys_do_not_depend_on_the_order_of_the_log(launches, random):
    shuffled = [(weight, list(by_m.items())) for weight, by_m in launches.items()]
    random.shuffle(shuffled)
    for _, by_m in shuffled:
        random.shuffle(by_m)
    again = {weight: dict(by_m) for weight, by_m in shuffled}
    # Sums of floating-point loads may differ in the last digit with the order: the outcome may not.
    assert math.isclose(
        distance(launches, weighed_batch_sizes(served(launches), DEFAULT, 4)),
        distance(launches, weighed_batch_sizes(served(again), DEFAULT, 4)),
        rel_tol=1e-9,
        abs_tol=1e-6,
    )


@given(st.lists(WEIGHTS, unique=True), st.integers(2, 18))
def test_weights_without_batch_sizes_leave_the_default(weights, most):
    assert weighed_batch_sizes(served({weight: {} for weight in weights}), DEFAULT, most) == DEFAULT


SOME_WEIGHTS = st.lists(WEIGHTS, min_size=1, max_size=3, unique=True)


@given(SOME_WEIGHTS, st.dictionaries(SIZES, COUNTS, min_size=6, max_size=20))
@settings(deadline=None)
def test_forward_passes_count_as_launches_of_every_weight(weights, passes):
    without = served({weight: {} for weight in weights}, passes)
    spelled_out = served(dict.fromkeys(weights, passes))
    assert weighed_batch_sizes(without, DEFAULT, 6) == weighed_batch_sizes(spelled_out, DEFAULT, 6)


@given(SOME_WEIGHTS, st.dictionaries(SIZES, COUNTS, min_size=1, max_size=6))
@settings(deadline=None)
def test_few_forward_passes_leave_room_for_the_default(weights, passes):
    keys = weighed_batch_sizes(served({weight: {} for weight in weights}, passes), STOCK_BATCH_SIZES, 18)
    assert list(keys) == sorted(set(keys))
    assert set(passes) <= set(keys) <= set(passes) | set(STOCK_BATCH_SIZES)
    assert len(keys) == 18
    for m in STOCK_BATCH_SIZES:
        assert min(max(m / key, key / m) for key in keys) <= 2, f"M = {m} is far from {keys}"


WRITERS = {
    "blanks": lambda m, n, k, count: f"{m} {n} {k} {count}",
    "commas": lambda m, n, k, count: f"{m}, {n}, {k}, {count}",
    "tabs": lambda m, n, k, count: f"{m}\t{n}\t{k}\t{count}",
    "times": lambda m, n, k, count: f"{m} × {n} × {k} × {count}",
    "pairs": lambda m, n, k, count: f"count={count}, K={k}, M={m}, N={n}",
    "objects": lambda m, n, k, count: json.dumps({"k": k, "n": n, "num_tokens": m, "count": count}),
    "triples": lambda m, n, k, count: json.dumps([m, n, k, count]),
}


@given(ROWS, st.sampled_from(sorted(WRITERS)), st.booleans())
@settings(deadline=None)
def test_counts_add_up_over_rows_of_every_kind(rows, kind, comments):
    lines = [WRITERS[kind](m, n, k, count) for m, (n, k), count in rows]
    if comments:
        lines = ["# launches", "", *(f"{line}  # seen" for line in lines)]
    expected: Counter[tuple[WeightShape, int]] = Counter()
    for m, (n, k), count in rows:
        expected[WeightShape(n, k), m] += count
    found = read_text("\n".join(lines))
    assert {(w, m): count for w, by_m in found.launches.items() for m, count in by_m.items()} == dict(expected)
    assert (found.quant, found.engines) == (None, ())


@given(ROWS, st.permutations(["M", "n", "K", "Count"]), st.sampled_from([",", ";", "\t"]))
@settings(deadline=None)
def test_columns_of_csv_come_in_any_order(rows, header, delimiter):
    by_name = [dict(zip("Mnk", (m, n, k), strict=True)) | {"Count": count} for m, (n, k), count in rows]
    lines = [
        delimiter.join(header),
        *(delimiter.join(str(row[h if h != "K" else "k"]) for h in header) for row in by_name),
    ]
    found = read_text("\r\n".join(lines))
    assert sum(sum(by_m.values()) for by_m in found.launches.values()) == sum(count for *_, count in rows)
    assert set(found.launches) == {WeightShape(n, k) for _, (n, k), _ in rows}


@given(st.lists(st.tuples(WEIGHTS, st.sampled_from(["[128, 128]", "[128,128]"]), st.text(max_size=20)), min_size=1))
@settings(deadline=None)
def test_every_missing_file_is_found_whatever_stands_around_it(lines):
    text = ""
    for weight, block, noise in lines:
        name = f"N={weight.N},K={weight.K},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape={block}.json"
        text += f"{noise}\n{HEAD}{MISSING}/x/configs/{name}\n"
    # A file that begins with a row is a list; a log begins with something else.
    found = read_text("INFO started\n" + text)
    assert list(found.launches) == list(dict.fromkeys(weight for weight, _, _ in lines))
    assert found.quant == QuantScheme()


@given(st.text() | st.from_regex(r"([MNK]=?\d*[ ,x]?|[{\[\]}\":]|\d{1,12}|#|\n){0,30}", fullmatch=True))
@settings(deadline=None, max_examples=300)
def test_any_text_is_read_or_refused_in_one_line(text):
    assert "\n" not in message_or_empty(text)
