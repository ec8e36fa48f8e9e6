"""Recorded devices: all layouts, what is refused, and writing."""

import gzip
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from blockscale.errors import InputError
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
from blockscale.recording import embedded, load_recording, write_recording

HEADER = {
    "record": "environment",
    "device_name": "NVIDIA H200",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "dtype": "fp8_w8a8",
    "out_dtype": "bfloat16",
    "block_shape": [128, 128],
    "timing": "graph replays",
    "kernels": {"generic": "a kernel"},
}
CONFIG = TileConfig(16, 64, 128, 1, 4, 3)
TRIAL = {
    "record": "trial",
    "kernel": "generic",
    "M": 16,
    "N": 512,
    "K": 1024,
    "config": CONFIG.to_entry(),
    "status": "ok",
    "time_us": 8.5,
    "max_us": 9.5,
    "compile_s": 0.25,
}
PROBLEM = Problem(GemmShape(16, 512, 1024))
ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1", (("note", "a ≥ b"),))


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_minimum_and_maximum_are_two_samples(tmp_path):
    recording = load_recording(write_lines(tmp_path / "r.jsonl", HEADER, TRIAL))
    assert recording.spec == H200
    assert recording.problems == (PROBLEM,)
    (trial,) = recording.trials(PROBLEM, Kernel.FP8)
    assert trial == Trial(PROBLEM, Candidate(Kernel.FP8, CONFIG), TrialStatus.OK, samples_us=(8.5, 9.5), compile_s=0.25)


def test_old_kernels_and_statuses_have_our_names(tmp_path):
    coarse = {key: value for key, value in TRIAL.items() if key != "max_us"} | {"status": "ok_coarse"}
    untimed = {key: value for key, value in TRIAL.items() if key not in ("time_us", "max_us")}
    hopper = {"kernel": "hopper", "config": CONFIG.with_(split_k=2).to_entry()}
    path = write_lines(
        tmp_path / "r.jsonl",
        HEADER,
        coarse,
        untimed | {"status": "wrong"} | hopper,
        untimed | {"status": "err"},
    )
    recording = load_recording(path)
    assert recording.kernels(PROBLEM) == (Kernel.FP8, Kernel.FP8_HOPPER)
    assert [(t.status, t.samples_us) for t in recording.trials(PROBLEM, Kernel.FP8)] == [
        (TrialStatus.COARSE, (8.5,)),
        (TrialStatus.LAUNCH_ERROR, ()),
    ]
    (wrong,) = recording.trials(PROBLEM, Kernel.FP8_HOPPER)
    assert (wrong.status, wrong.candidate.config.split_k) == (TrialStatus.WRONG_RESULT, 2)


def test_order_of_fields_does_not_matter(tmp_path):
    backwards = dict(reversed(TRIAL.items()))
    other = backwards | {"M": 32}
    recording = load_recording(write_lines(tmp_path / "r.jsonl", HEADER, backwards, other, TRIAL))
    assert [p.shape.M for p in recording.problems] == [16, 32]
    assert len(recording.trials(PROBLEM, Kernel.FP8)) == 2


def test_environment_tells_recordings_of_other_methods_apart(tmp_path):
    one = load_recording(write_lines(tmp_path / "1.jsonl", HEADER, TRIAL))
    same = load_recording(write_lines(tmp_path / "2.jsonl", HEADER, TRIAL, TRIAL))
    other = load_recording(write_lines(tmp_path / "3.jsonl", HEADER | {"timing": "events"}, TRIAL))
    assert one.environment == same.environment
    assert one.digest != same.digest
    assert one.environment.key != other.environment.key


def test_device_without_known_limits_needs_a_spec(tmp_path):
    header = HEADER | {"device_name": "NVIDIA H20"}
    with pytest.raises(InputError, match=r"NVIDIA H20.*no spec"):
        load_recording(write_lines(tmp_path / "r.jsonl", header, TRIAL))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 0},
        {"arch": ""},
        {"vendor": None},
        {"compute_units": 0},
        {"compute_units": [[]]},
        {"warp_size": True},
        {"memory_bytes": 1.5e11},
        {"registers_per_unit": 10**400},
        {"l2_bytes": -1},
    ],
)
@pytest.mark.parametrize("header", [HEADER, HEADER | {"layout": 2, "environment": asdict(ENVIRONMENT)}])
def test_limits_that_no_device_has_are_refused(tmp_path, header, changes):
    path = write_lines(tmp_path / "r.jsonl", header | {"spec": asdict(H200) | changes}, TRIAL)
    with pytest.raises(InputError, match=rf"line 1: .*{'Vendor' if 'vendor' in changes else next(iter(changes))}"):
        load_recording(path)


@pytest.mark.parametrize(
    ("lines", "line", "rule"),
    [
        ([], 1, "not one whole JSON object"),
        (['{"N": 1}'], 1, "not an environment"),
        (["[1, 2]"], 1, "line 1"),
        ([json.dumps(HEADER)], 1, "no trial"),
        ([json.dumps(HEADER), json.dumps(TRIAL)[:-30]], 2, "not one whole JSON object"),
        ([json.dumps(HEADER), json.dumps(TRIAL), json.dumps(TRIAL).partition(', "status"')[0]], 3, "JSON"),
        ([json.dumps(HEADER), json.dumps(TRIAL | {"kernel": "cutlass"})], 2, "'cutlass'"),
        ([json.dumps(HEADER), json.dumps(TRIAL | {"status": "great"})], 2, "'great'"),
        ([json.dumps(HEADER), json.dumps(TRIAL | {"M": 0})], 2, "M = 0"),
        ([json.dumps(HEADER), json.dumps(TRIAL | {"time_us": -1})], 2, "positive number"),
        ([json.dumps(HEADER), json.dumps({k: v for k, v in TRIAL.items() if k != "config"})], 2, "'config' is missing"),
        ([json.dumps(HEADER), json.dumps(HEADER)], 2, "not a trial"),
        ([json.dumps(HEADER | {"layout": 99}), json.dumps(TRIAL)], 1, "newer"),
        ([json.dumps(HEADER | {"dtype": "fp4"}), json.dumps(TRIAL)], 1, "fp4"),
    ],
)
def test_foreign_and_cut_files_are_refused_by_line(tmp_path, lines, line, rule):
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as refusal:
        load_recording(path)
    assert f"{path} line {line}:" in str(refusal.value)
    assert rule in str(refusal.value)


LAYOUT_3 = Path(__file__).parents[1] / "golden" / "recording_layout_3.jsonl"


def damaged(path, number, **changes):
    """The layout 3 file with other fields on one line, None to leave one out."""
    lines = [json.loads(line) for line in LAYOUT_3.read_text(encoding="utf-8").splitlines()]
    changed = lines[number - 1] | changes
    lines[number - 1] = {name: value for name, value in changed.items() if value is not None}
    return write_lines(path, *lines)


@pytest.mark.parametrize(
    ("number", "changes", "rule"),
    [
        (2, {"record": "trials"}, "not the list of configs"),
        (2, {"configs": [{"BLOCK_SIZE_M": 16}]}, "BLOCK_SIZE_N"),
        (2, {"configs": None}, "'configs' is missing"),
        (3, {"record": "trial"}, "not a trial record"),
        (3, {"kernel": "cutlass"}, "cutlass"),
        (3, {"config": [0, 9, 0]}, "trial 2: step 9 leads to none of the 4 configs"),
        (3, {"config": [0, -1, 0]}, "trial 2: step -1"),
        (3, {"config": [0, True, 0]}, "trial 2: step True"),
        (3, {"config": [0, 2]}, "as many values as there are trials"),
        (3, {"status": ["ok", "ok"]}, "status is not a list of as many values"),
        (3, {"status": "okk"}, "status is not a list"),
        (3, {"status": ["ok", "great", "ok"]}, "trial 2: 'great'"),
        (3, {"samples_us": [[1.0], [2.0], []]}, "trial 3: status ok has no time"),
        (3, {"compile_s": [0.5, -1, 0]}, "trial 2: compile_s = -1"),
        (3, {"phase": None}, "'phase' is missing"),
        (3, {"config": [], "phase": [], "status": [], "samples_us": [], "compile_s": [], "elapsed_s": []}, "no trial"),
    ],
)
def test_wrong_columns_are_refused_by_line_and_trial(tmp_path, number, changes, rule):
    path = damaged(tmp_path / "r.jsonl", number, **changes)
    with pytest.raises(InputError) as refusal:
        tuple(load_recording(path))
    assert f"{path} line {number}:" in str(refusal.value)
    assert rule in str(refusal.value)


@pytest.mark.parametrize(("lines", "rule"), [(1, "no trial follows"), (2, "no trial follows"), (2.5, "JSON")])
def test_cut_columns_are_refused(tmp_path, lines, rule):
    whole = LAYOUT_3.read_text(encoding="utf-8").splitlines()
    kept = whole[: int(lines)] + ([whole[2][:-30]] if lines % 1 else [])
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(kept), encoding="utf-8")
    with pytest.raises(InputError, match=rule):
        load_recording(path)


def test_wrong_columns_of_one_problem_leave_the_others_readable(tmp_path):
    recording = load_recording(damaged(tmp_path / "r.jsonl", 3, status=["ok", "great", "ok"]))
    assert len(recording.trials(PROBLEM, Kernel.FP8_HOPPER)) == 1
    with pytest.raises(InputError, match="line 3"):
        recording.trials(PROBLEM, Kernel.FP8)


def test_wrong_value_in_the_middle_is_refused_when_its_problem_is_read(tmp_path):
    bad = TRIAL | {"config": {"BLOCK_SIZE_M": 16}}
    recording = load_recording(write_lines(tmp_path / "r.jsonl", HEADER, bad, TRIAL))
    with pytest.raises(InputError, match=r"line 2:.*BLOCK_SIZE_N"):
        recording.trials(PROBLEM, Kernel.FP8)


@pytest.mark.parametrize("changes", [{"time_us": 10**400}, {"compile_s": 10**400}])
def test_numbers_beyond_a_float_are_refused(tmp_path, changes):
    with pytest.raises(InputError, match=r"line 2: .*too large"):
        load_recording(write_lines(tmp_path / "r.jsonl", HEADER, TRIAL | changes))


def test_device_name_that_is_no_text_is_refused(tmp_path):
    header = HEADER | {"device_name": ["NVIDIA H200"], "spec": asdict(H200)}
    with pytest.raises(InputError, match=r"line 1: device_name"):
        load_recording(write_lines(tmp_path / "r.jsonl", header, TRIAL))


def test_cut_archive_binary_folder_and_missing_file_are_refused(tmp_path):
    packed = gzip.compress("\n".join(map(json.dumps, [HEADER, TRIAL])).encode())
    cases = {"cut.gz": packed[:-20], "half.gz": packed[: len(packed) // 2], "binary": b"\x00\xff\xfe"}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    for name in (*cases, ".", "nowhere.gz"):
        with pytest.raises(InputError, match=str(tmp_path)):
            load_recording(tmp_path / name)


def test_written_recording_reads_back_with_all_that_it_held(tmp_path):
    trials = [
        Trial(PROBLEM, Candidate(Kernel.FP8, CONFIG), TrialStatus.OK, samples_us=(1.1, 2.2, 3.3), labels=("power",)),
        Trial(
            replace(PROBLEM, quant=QuantScheme(QuantFormat.INT8, 64, 32), out_dtype=OutDtype.FLOAT32),
            Candidate(Kernel.INT8, CONFIG.with_(extra=(("grf_mode", '"256"'),))),
            TrialStatus.COMPILE_ERROR,
            phase=Phase.FINAL,
            message='ptxas fatal: "é"\nline 2',
            compile_s=0.5,
            elapsed_s=0.75,
        ),
    ]
    spec = replace(H200, name="NVIDIA H20", compute_units=78)
    for name in ("r.jsonl", "r.jsonl.gz"):
        assert write_recording(tmp_path / name, spec, ENVIRONMENT, trials) == 2
        recording = load_recording(tmp_path / name)
        assert recording.spec == spec
        assert recording.environment == ENVIRONMENT
        assert recording.environment.details == ENVIRONMENT.details
        assert sorted(recording, key=str) == sorted(trials, key=str)


def test_same_trials_give_the_same_bytes(tmp_path):
    trial = Trial(PROBLEM, Candidate(Kernel.FP8, CONFIG), TrialStatus.OK, samples_us=(1.0,))
    write_recording(tmp_path / "a.gz", H200, ENVIRONMENT, [trial])
    write_recording(tmp_path / "b.gz", H200, ENVIRONMENT, iter([trial]))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_failed_writing_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("old")

    def broken():
        yield Trial(PROBLEM, Candidate(Kernel.FP8, CONFIG), TrialStatus.OK, samples_us=(1.0,))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_recording(path, H200, ENVIRONMENT, broken())
    with pytest.raises(InputError, match="no trial"):
        write_recording(path, H200, ENVIRONMENT, [])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="nowhere"):
        write_recording(tmp_path / "nowhere" / "r.jsonl", H200, ENVIRONMENT, [])


def test_shipped_recording_is_an_h200_and_small_enough_to_ship():
    recording = load_recording(embedded("h200"))
    assert recording.spec == H200
    assert embedded("h200").stat().st_size <= 1_000_000
    assert len(recording.problems) > 60
    assert sum(1 for _ in recording) > 70_000
    origins = [text for name, text in recording.environment.details if name.startswith("origin")]
    assert len(origins) >= 2
    assert all("Triton 3." in origin for origin in origins)


def test_shipped_recording_holds_the_first_one_unchanged(published_data):
    shipped = load_recording(embedded("h200"))
    first = load_recording(published_data / "recorded" / "h200.jsonl.gz")
    assert len(first.problems) == 16
    for problem in first.problems:
        for kernel in first.kernels(problem):
            assert set(shipped.trials(problem, kernel)) == set(first.trials(problem, kernel))


def test_shipped_recording_loads_in_a_fraction_of_reading_it_whole():
    start = time.process_time()
    recording = load_recording(embedded("h200"))
    loaded = time.process_time()
    assert sum(1 for _ in recording) > 70_000
    assert loaded - start < (time.process_time() - start) / 2


def test_embedded_name_that_does_not_ship_is_refused_with_those_that_do():
    with pytest.raises(InputError, match=r"h100.*h200"):
        embedded("h100")


@pytest.mark.parametrize("place", ["pipe", ".", "/dev/zero"])
def test_only_files_are_read_and_replaced(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no file"):
        load_recording(tmp_path / place)
    with pytest.raises(InputError, match="not a regular file"):
        write_recording(tmp_path / place, H200, ENVIRONMENT, [])


@pytest.mark.parametrize("changes", [{"compile_s": float("nan")}, {"compile_s": -1.0}, {"compile_s": []}])
def test_seconds_are_finite_and_not_negative(tmp_path, changes):
    path = write_lines(tmp_path / "r.jsonl", HEADER, TRIAL | changes)
    with pytest.raises(InputError, match="line 2"):
        load_recording(path)


@pytest.mark.parametrize("field", ["torch", "triton", "timing"])
@pytest.mark.parametrize("value", [None, [], {"a": 1}, 7])
def test_versions_in_a_header_may_be_anything(tmp_path, field, value):
    recording = load_recording(write_lines(tmp_path / "r.jsonl", HEADER | {field: value}, TRIAL))
    assert len({recording.environment}) == 1


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_lines_nested_beyond_reason_are_refused(tmp_path, line):
    path = tmp_path / "r.jsonl"
    for text in (line, json.dumps(HEADER) + "\n" + line):
        path.write_text(text)
        with pytest.raises(InputError, match=r"r\.jsonl line [12]"):
            load_recording(path)
