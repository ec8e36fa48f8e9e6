"""The installed command as a person runs it, on the recorded H200."""

import errno
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.shapes import PRESETS

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
PROBLEM = ["--N", "2112", "--K", "7168", "--device", "recorded:h200"]
BATCH_SIZES = ["1", "16", "64", "256", "1024", "4096"]
NAME = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
VLLM_NAME = NAME.replace("128, 128", "128,128")


def blockscale(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BLOCKSCALE, *arguments], cwd=folder, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL
    )


def events(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("**/N=*].json"))}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder in which both engines were tuned with the defaults, and what the command said."""
    folder = tmp_path_factory.mktemp("tuned")
    engines = ["--engine", "sglang", "--engine", "vllm"]
    return folder, blockscale(folder, "tune", *PROBLEM, *engines, "--batch-sizes", *BATCH_SIZES)


def test_the_default_folders_hold_a_file_for_each_engine(tuned):
    folder, done = tuned
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert set(files_in(folder / "configs")) == {f"sglang/{NAME}", f"vllm/{VLLM_NAME}"}
    assert (folder / "blockscale.db").is_file()


def test_the_run_ends_with_table_mean_files_and_what_engines_do_with_them(tuned):
    _, done = tuned
    for part in ("% of roofline", "geometric mean over 12 problems", f"sglang/{NAME}", "restart", "DeepGEMM"):
        assert part in done.stdout
    assert "approximate" not in done.stdout, "both engines' kernels are recorded"
    finished = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(finished) == 12


def test_export_of_the_store_gives_the_files_of_the_run(tuned):
    folder, _ = tuned
    before = files_in(folder / "configs")
    done = blockscale(folder, "export", "configs", "--engine", "sglang", "--engine", "vllm", "--save-path", "again")
    assert done.returncode == 0, done.stderr
    assert files_in(folder / "again") == before


def test_an_exported_recording_is_a_device_that_gives_the_same_files(tuned):
    folder, _ = tuned
    assert blockscale(folder, "export", "recording", "-o", "mine.jsonl.gz").returncode == 0
    again = ["--engine", "sglang", "--save-path", "replayed", "--store", "other.db", "--batch-sizes", *BATCH_SIZES]
    done = blockscale(folder, "tune", *PROBLEM[:4], "--device", "recorded:mine.jsonl.gz", *again)
    assert done.returncode == 0, done.stderr
    assert files_in(folder / "replayed")[NAME] == files_in(folder / "configs")[f"sglang/{NAME}"]


def test_times_of_a_kernel_that_was_not_recorded_are_called_approximate(tmp_path):
    batch_sizes = ["--batch-sizes", "16", "64"]
    assert blockscale(tmp_path, "tune", *PROBLEM, "--engine", "sglang", *batch_sizes).returncode == 0
    assert blockscale(tmp_path, "export", "recording", "-o", "sglang.jsonl").returncode == 0
    on_it = ["--device", "recorded:sglang.jsonl", "--engine", "vllm", "--store", "vllm.db"]
    done = blockscale(tmp_path, "tune", *PROBLEM[:4], *on_it, *batch_sizes)
    assert done.returncode == 0, done.stderr
    assert "approximate: vllm" in done.stdout
    assert "≈" in done.stdout


def test_json_is_one_object_a_line_with_the_summary_last(tmp_path):
    arguments = ["tune", *PROBLEM, "--engine", "sglang", "--batch-sizes", "1", "16", "1", "--json"]
    first = blockscale(tmp_path, *arguments)
    kinds = [event["event"] for event in events(first)]
    assert kinds == ["plan", "note", "run", "problem", "problem", "file", "time", "summary"]
    summary = events(first)[-1]
    assert summary["trials_measured"] > 2
    assert {"M", "N", "K", "engine", "config", "time_us", "baseline_us", "status"} <= set(summary["problems"][0])
    before = files_in(tmp_path)
    again = events(blockscale(tmp_path, *arguments))[-1]
    assert again["trials_measured"] == 0
    assert again["problems"] == summary["problems"]
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_saves_what_is_finished_and_the_same_command_continues(number, tuned, tmp_path):
    arguments = ["tune", *PROBLEM, "--engine", "sglang", "--engine", "vllm", "--batch-sizes", *BATCH_SIZES, "--json"]
    reader, writer = os.pipe()
    # The output of the whole run does not fit into the pipe, so the run is still going on when the signal comes.
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(
        [*BLOCKSCALE, *arguments],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a background shell has it ignored
    )
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as output:
        seen = b""
        while b'"problem"' not in seen:
            chunk = output.read(256)
            assert chunk, f"ended before the first problem: {process.communicate()[1]}"
            seen += chunk
        process.send_signal(number)
        while output.read(4096):
            pass
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert "the same command continues" in error
    assert "Traceback" not in error
    last = events(blockscale(tmp_path, *arguments))[-1]
    assert last["trials_reused"] > 0
    assert files_in(tmp_path / "configs") == files_in(tuned[0] / "configs")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_leaves_ends_the_run_quietly_and_what_is_finished_is_saved(form, tuned, tmp_path):
    arguments = ["tune", *PROBLEM, "--engine", "sglang", "--batch-sizes", *BATCH_SIZES, *form]
    process = subprocess.Popen([*BLOCKSCALE, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seen = b""
    while b"M=4096" not in seen and b'"M": 4096' not in seen:
        seen += process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
    (written,) = files_in(tmp_path / "configs").values()
    assert "4096" in json.loads(written)
    assert blockscale(tmp_path, *arguments).returncode == 0
    assert files_in(tmp_path / "configs") == {f"sglang/{NAME}": files_in(tuned[0] / "configs")[f"sglang/{NAME}"]}


def test_a_broken_file_is_kept_aside_and_a_foreign_device_name_is_warned_of(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    renamed = NAME.replace("NVIDIA_H200", "NVIDIA_H200_NVL")
    (out / renamed).write_text('{"16": ')
    arguments = ["--engine", "sglang", "--batch-sizes", "16", "--save-path", "out", "--device-name", "NVIDIA H200 NVL"]
    done = blockscale(tmp_path, "tune", *PROBLEM, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    kinds = {event["event"]: event for event in events(done)}
    assert "NVIDIA H200 NVL" in kinds["warning"]["text"]
    assert "kept as" in kinds["note"]["text"]
    assert list(json.loads((out / renamed).read_text())) == ["16"]
    assert [p.read_text() for p in out.iterdir() if "unreadable" in p.name] == ['{"16": ']


def test_on_a_terminal_a_live_view_shows_the_run(tmp_path):
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*BLOCKSCALE, "tune", *PROBLEM, "--engine", "sglang", "--batch-sizes", "16"],
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(terminal)
    shown = b""
    while chunk := _read(screen):
        shown += chunk
    os.close(screen)
    assert process.wait() == 0, shown
    for part in ("problems done", "[1/1] sglang M=16", "% of roofline", "Go?"):
        assert (part in shown.decode()) == (part != "Go?")


def _read(screen: int) -> bytes:
    """A chunk of a terminal's output; empty when its last writer is gone, which Linux reports as an error."""
    try:
        return os.read(screen, 4096)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def test_models_that_share_shapes_are_tuned_once_and_each_file_says_what_it_serves(tmp_path):
    for name, layers in (("one", 61), ("two", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({**PRESETS["deepseek-v3"], "num_hidden_layers": layers})
        )
    asked = ["one", "two", "--tp-size", "8", "--engine", "sglang", "--batch-sizes", "16", "--device", "recorded:h200"]
    done = blockscale(tmp_path, "tune", *asked, "--json")
    assert done.returncode == 0, done.stderr
    told = events(done)
    (plan,) = [event for event in told if event["event"] == "plan"]
    problems = [(p["N"], p["K"]) for p in told[-1]["problems"]]
    assert len(problems) == len(set(problems)) == len(plan["weights"]) == 8
    output = {(w["N"], w["K"]): w for w in plan["weights"]}[7168, 2048]
    assert [(u["model"], u["tp_size"], u["layers"], u["count"]) for u in output["serves"]] == [
        ("one", 8, ["o_proj"], 61),
        ("two", 8, ["o_proj"], 4),
    ]
    written = [event for event in told if event["event"] == "file"]
    assert len(written) == 8
    assert all({u["model"] for u in event["serves"]} == {"one", "two"} for event in written)
    again = blockscale(tmp_path, "tune", *asked)
    assert again.returncode == 0, again.stderr
    before, after = again.stdout.split("8 problems for sglang")
    assert "q_b_proj" in before
    assert "serves two TP 8: q_b_proj" in after


def test_a_weight_that_only_one_engine_launches_has_a_file_of_that_engine_alone(tmp_path):
    both = ["--engine", "sglang", "--engine", "vllm", "--shared-experts-fusion"]
    asked = ["deepseek-v3", "--tp-size", "8", *both, "--batch-sizes", "16", "--device", "recorded:h200", "--json"]
    done = blockscale(tmp_path, "tune", *asked)
    assert done.returncode == 0, done.stderr
    told = events(done)
    shared = {(512, 7168), (7168, 256)}
    by_engine = {
        name: {(p["N"], p["K"]) for p in told[-1]["problems"] if p["engine"] == name} for name in ("sglang", "vllm")
    }
    assert by_engine["vllm"] - by_engine["sglang"] == shared
    assert by_engine["sglang"] < by_engine["vllm"]
    assert len(files_in(tmp_path / "configs")) == len(by_engine["sglang"]) + len(by_engine["vllm"]) == 14
    assert {(w["N"], w["K"]) for w in told[0]["weights"] if w["engines"] == ["vllm"]} == shared
    again = events(blockscale(tmp_path, "tune", *asked))[-1]
    assert again["trials_measured"] == 0
    assert again["problems"] == told[-1]["problems"]


def test_fitted_keys_stand_between_the_tuned_ones_and_cost_no_trial(tmp_path):
    asked = ["--N", "7168", "--K", "2304", "--engine", "sglang", "--batch-sizes", "1", "16", "32", "64", "128", "256"]
    plain = events(blockscale(tmp_path, "tune", *asked, "--device", "recorded:h200", "--json"))[-1]
    (path,) = (tmp_path / file for file in plain["files"])
    before = json.loads(path.read_text())
    fitted = events(blockscale(tmp_path, "tune", *asked, "--device", "recorded:h200", "--json", "--keys", "fit"))[-1]
    after = json.loads(path.read_text())
    assert fitted["trials_measured"] == 0
    assert before.items() <= after.items()
    assert len(after) > len(before)
    assert list(map(int, after)) == sorted(map(int, after))
