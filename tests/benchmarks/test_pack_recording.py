"""Packing stores and recordings into one recorded device."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pack_recording
import pytest
from pack_recording import pack, read_sources, shortened

from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.problem import Candidate, Environment, GemmShape, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.recording import load_recording, write_recording
from blockscale.store import Store

PROBLEM = Problem(GemmShape(16, 512, 1024))
CONFIG = TileConfig(16, 64, 128)
OLD = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1", (("timing", "graphs"),))
NEW = replace(OLD, driver="590", kernel_hash="def")


def trial(time_us=10.0, kernel=Kernel.FP8, status=TrialStatus.OK, problem=PROBLEM, config=CONFIG, **fields):
    samples = (time_us,) if status.timed else ()
    return Trial(problem, Candidate(kernel, config), status, samples_us=samples, **fields)


@pytest.fixture
def recording_of(tmp_path):
    def make(name, *trials, environment=OLD, spec=H200):
        path = tmp_path / name
        write_recording(path, spec, environment, trials)
        return path

    return make


@pytest.fixture
def store_of(tmp_path):
    def make(name, *trials):
        path = tmp_path / name
        with Store.open(path) as store:
            for environment, each in trials:
                store.register(environment, H200)
                store.add(environment, each)
        return path

    return make


@pytest.fixture
def packed(tmp_path):
    def pack_all(*given):
        sources = [source for path, kept in given for source in read_sources(path, f"from {path.name}", kept)]
        pack(sources, tmp_path / "packed.jsonl.gz")
        return load_recording(tmp_path / "packed.jsonl.gz")

    return pack_all


def test_what_is_kept_stands_digit_for_digit_and_alone(recording_of, store_of, packed):
    kept = trial(10.123456, status=TrialStatus.COARSE, compile_s=0.123456)
    other = trial(9.0, config=CONFIG.with_(num_stages=5))
    masked = trial(11.0, kernel=Kernel.FP8_MASKED)
    recording = packed(
        (store_of("s.db", (NEW, trial(9.0)), (NEW, other), (NEW, masked)), False), (recording_of("r.jsonl", kept), True)
    )
    assert recording.trials(PROBLEM, Kernel.FP8) == (kept,)
    assert recording.trials(PROBLEM, Kernel.FP8_MASKED) == (masked,)
    assert recording.spec == H200


def test_whole_measurement_beats_first_look_beats_failure_and_later_beats_earlier(recording_of, store_of, packed):
    configs = [CONFIG.with_(num_stages=stages) for stages in (2, 3, 4, 5)]
    whole, look, failed = TrialStatus.OK, TrialStatus.COARSE, TrialStatus.TIMEOUT
    first = [trial(1.0, status=s, config=c) for s, c in zip((look, whole, failed, whole), configs, strict=True)]
    second = [trial(2.0, status=s, config=c) for s, c in zip((whole, look, look, whole), configs, strict=True)]
    store = store_of("s.db", *((OLD, t) for t in first), *((NEW, t) for t in second))
    assert [t.time_us for t in packed((store, False)).trials(PROBLEM, Kernel.FP8)] == [2.0, 1.0, 2.0, 2.0]
    files = recording_of("2.jsonl", *second, environment=NEW), recording_of("1.jsonl", *first)
    both = packed(*((file, False) for file in files))
    assert [t.time_us for t in both.trials(PROBLEM, Kernel.FP8)] == [2.0, 1.0, 2.0, 1.0]


def test_finals_stand_beside_screenings(recording_of, packed):
    both = [trial(10.0), trial(11.0, phase=Phase.FINAL)]
    recording = packed((recording_of("r.jsonl", *both), False))
    assert {(t.phase, t.time_us) for t in recording} == {(Phase.SCREEN, 10.0), (Phase.FINAL, 11.0)}


def test_a_whole_measurement_keeps_all_samples_and_a_first_look_its_fastest():
    samples = (13.970999978482723, 1234567.0, 0.00123456)
    short = shortened(replace(trial(), samples_us=samples, compile_s=1.0262480609999898, elapsed_s=0.008293951))
    assert (short.samples_us, short.compile_s, short.elapsed_s) == ((13.97, 1235000.0, 0.001235), 1.03, 0.0083)
    look = shortened(replace(trial(status=TrialStatus.COARSE), samples_us=samples[:2]))
    assert look.samples_us == (13.97,)


def test_each_source_is_told_with_what_is_left_of_it(recording_of, store_of, packed):
    other = replace(PROBLEM, shape=GemmShape(1, 512, 1024))
    store = store_of("s.db", (NEW, trial(kernel=Kernel.FP8_MASKED)), (NEW, trial(problem=other)), (NEW, trial()))
    recording = packed((recording_of("r.jsonl", trial()), True), (store, False))
    environment = recording.environment
    (first, second) = environment.details
    assert first[0] == "origin 1"
    assert "driver 580" in first[1]
    assert first[1].endswith("from r.jsonl; timing: graphs; 1 trials: fp8 512×1024 at M 16")
    assert "driver 590" in second[1]
    assert second[1].endswith("2 trials: fp8 512×1024 at M 1; fp8_masked 512×1024 at M 16")
    assert (environment.device_name, environment.driver, environment.torch) == ("NVIDIA H200", "580 / 590", "2.11")
    assert len({environment.key, OLD.key, NEW.key}) == 3


def test_packing_again_changes_nothing_and_keeps_the_provenance(recording_of, store_of, packed, tmp_path):
    store = store_of("s.db", (NEW, trial(10.56789)), (OLD, trial(11.0, kernel=Kernel.FP8_MASKED)))
    once = packed((store, False))
    (tmp_path / "packed.jsonl.gz").rename(tmp_path / "once.jsonl.gz")
    twice = packed((tmp_path / "once.jsonl.gz", False))
    assert (once.digest, once.environment.details) == (twice.digest, twice.environment.details)


def test_two_devices_are_no_recording(recording_of, packed):
    h20 = replace(H200, name="NVIDIA H20")
    files = recording_of("1.jsonl", trial()), recording_of("2.jsonl", trial(), spec=h20)
    with pytest.raises(InputError, match="2 devices"):
        packed(*((file, False) for file in files))


def test_the_script_writes_the_file_and_says_what_is_in_it(recording_of, tmp_path):
    path = recording_of("r.jsonl", trial())
    arguments = ["--add", path, "a note", "--output", tmp_path / "o.jsonl.gz"]
    done = subprocess.run(
        [sys.executable, Path(pack_recording.__file__), *arguments], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "1 trials of 1 problems" in done.stdout
    assert "a note" in done.stdout
    assert "| 512×1024 | 16 | 1 |" in done.stdout
    assert len(list(load_recording(tmp_path / "o.jsonl.gz"))) == 1
