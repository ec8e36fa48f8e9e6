"""Shapes taken from what a server launched, as a person runs it on the recorded H200."""

import json

import pytest

from blockscale.cli.main import main

LOG = (
    "[2026-01-05 10:00:00] Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file "
    "not found at /x/configs/N={n},K={k},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json\n"
)
LAUNCHES = "16 2112 7168 30\n64 2112 7168 30\n16 7168 2048 20\n"
ON_RECORDED = ["--device", "recorded:h200", "--yes", "--json"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text("".join(LOG.format(n=n, k=k) for n, k in ((2112, 7168), (7168, 2048))))
    (tmp_path / "launches.txt").write_text(LAUNCHES)


def events(capsys):
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def test_a_log_is_listed_as_the_shapes_that_have_no_file(capsys):
    assert main(["shapes", "--from-log", "server.log"]) == 0
    out = capsys.readouterr().out
    for part in ("server.log", "sglang", "fp8 in blocks of 128×128", "2112", "7168"):
        assert part in out
    assert main(["shapes", "--from-log", "server.log", "--json"]) == 0
    (found,) = events(capsys)
    assert [(row["N"], row["K"]) for row in found["shapes"]] == [(2112, 7168), (7168, 2048)]
    assert set(found) == {"listings", "shapes", "refused"}


def test_counted_launches_are_listed_by_batch_size(capsys):
    assert main(["shapes", "--from-log", "launches.txt", "--json"]) == 0
    (found,) = events(capsys)
    assert [(row["launches"], row["launches_share"]) for row in found["shapes"]] == [
        ({"16": 30, "64": 30}, 0.75),
        ({"16": 20}, 0.25),
    ]


def test_a_log_names_the_engine_and_the_shapes_to_tune(capsys):
    assert main(["tune", "--from-log", "server.log", "--batch-sizes", "16", *ON_RECORDED]) == 0
    told = events(capsys)
    assert next(event for event in told if event["event"] == "run")["engines"] == ["sglang"]
    assert {(p["N"], p["K"], p["M"]) for p in told[-1]["problems"]} == {(2112, 7168, 16), (7168, 2048, 16)}


def test_counted_launches_give_the_batch_sizes_and_each_shape_its_share(capsys):
    assert main(["tune", "--from-log", "launches.txt", "--engine", "sglang", *ON_RECORDED]) == 0
    told = events(capsys)
    assert told[0]["event"] == "plan"
    assert told[0]["batch_sizes"] == [16, 64]
    assert [(w["N"], w["launches"], w["launches_share"]) for w in told[0]["weights"]] == [
        (2112, 60, 0.75),
        (7168, 20, 0.25),
    ]
    assert len(told[-1]["problems"]) == 4


def test_given_batch_sizes_and_blocks_go_before_those_of_a_log(capsys):
    given = ["--batch-sizes", "1", "--block-n", "64", "--block-k", "64"]
    assert main(["tune", "--from-log", "server.log", *given, *ON_RECORDED]) == 2
    assert "[64, 64]" in capsys.readouterr().err, "the recorded GPU holds blocks of 128×128 alone"
    assert main(["tune", "--from-log", "launches.txt", "--engine", "vllm", "--batch-sizes", "1", *ON_RECORDED]) == 0
    told = events(capsys)
    assert told[0]["batch_sizes"] == [1]


@pytest.mark.parametrize("command", ["shapes", "tune"])
@pytest.mark.parametrize("text", [None, "", "nothing of interest\n", "\0\1\2"])
def test_a_log_without_shapes_is_one_message(command, text, tmp_path, capsys):
    if text is not None:
        (tmp_path / "other.log").write_text(text)
    assert main([command, "--from-log", "other.log"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "other.log" in err
