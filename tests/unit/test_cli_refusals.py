"""Wrong input at the command line: exit 2, one message, nothing written."""

import gzip
import os
from pathlib import Path

import pytest

from blockscale.cli.main import main

RECORDED = ["--device", "recorded:h200", "--engine", "sglang", "--yes"]
RAY = ["--executor", "ray"]
SIZES = ["--N", "2112", "--K", "7168"]
ONE = ["--batch-sizes", "16"]
FILE = "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


def refused(capsys, *arguments):
    """The one message that the command line gives for these arguments."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("blockscale: error: ")
    return err


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "--N", "2112", *RECORDED], ["--N", "--K", "MODEL"]),
        (["tune", "--K", "7168", *RECORDED], ["--N", "--K"]),
        (["tune", "--N", "0", "--K", "7168", *RECORDED], ["--N 0", "at least 1"]),
        (["tune", "--N", "-5", "--K", "7168", *RECORDED], ["--N -5", "at least 1"]),
        (["tune", "--N", "2112.5", "--K", "7168", *RECORDED], ["--N 2112.5", "whole number"]),
        (["tune", "--N", "2_112", "--K", "7168", *RECORDED], ["--N 2_112", "whole number"]),
        (["tune", "--N", "", "--K", "7168", *RECORDED], ["--N ''", "whole number"]),
        (["tune", "--N", " 16", "--K", "7168", *RECORDED], ["--N ' 16'", "whole number"]),
        (["tune", "--N", "١٦", "--K", "7168", *RECORDED], ["--N ١٦", "whole number"]),
        (["tune", "--N", "9" * 5000, "--K", "7168", *RECORDED], ["--N 999", "too large", "18 digits"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--seed", "9" * 19], ["--seed 9", "too large"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--trials", "x" * 5000], ["--trials xxx", "whole number"]),
        (["tune", *SIZES, "--batch-sizes", "0", *RECORDED], ["--batch-sizes 0", "at least 1"]),
        (["tune", *SIZES, "--batch-sizes", "1,16", *RECORDED], ["--batch-sizes 1,16", "whole number"]),
        (["tune", *SIZES, "--batch-sizes", "16", "deepseek-v3"], ["deepseek-v3", "--N/--K", "not both"]),
        (["tune", "--batch-sizes", "some-model", *RECORDED], ["--batch-sizes some-model", "whole number"]),
        (["tune", *SIZES, "--batch-sizes", "4610048", *RECORDED], ["M=4610048", "32 bits", "smaller batch size"]),
        (["tune", "--N", "65536", "--K", "65536", *ONE, *RECORDED], ["N·K", "32 bits"]),
        (["tune", *SIZES, "--block-k", "96", *RECORDED], ["--block-k 96", "power of two"]),
        (["tune", *SIZES, "--block-n", "16", *RECORDED], ["--block-n 16", "power of two"]),
        (["tune", "some-model", *SIZES, *RECORDED], ["some-model", "not both"]),
        (["tune", *SIZES, "--tp-size", "0", *RECORDED], ["--tp-size 0", "at least 1"]),
        (["tune", "--tp-size", "8", "four", *RECORDED], ["'four'", "hub id"]),
        (["tune", "deepseek-v3", "--tp-size", "8", "4.5", *RECORDED], ["--tp-size 4.5", "whole number"]),
        (["tune", "deepseek-v3", "--ep-size", "0", *RECORDED], ["--ep-size 0", "at least 1"]),
        (["tune", "deepseek-v3", "--quantization", "int4", *RECORDED], ["--quantization", "int4", "fp8-block"]),
        (["tune", "deepseek-v3", "--revision", "main", *RECORDED], ["'main'", "hub"]),
        (
            ["tune", "deepseek-v3", "--tp-size", "8", "32", *RECORDED],
            ["--tp-size 32", "gate_up_proj", "576", "blockscale"],
        ),
        (["tune", "deepseek-v3", "--from-log", "a.log", *RECORDED], ["--from-log a.log", "deepseek-v3", "not both"]),
        (["tune", *SIZES, "--from-log", "a.log", *RECORDED], ["--from-log a.log", "--N/--K", "not both"]),
        (["tune", "--K", "7168", "--from-log", "a.log", *RECORDED], ["--from-log a.log", "--N/--K"]),
        (["tune", *SIZES, "--trials", "0", *RECORDED], ["--trials 0", "at least 1"]),
        (["tune", *SIZES, "--seed", "-1", *RECORDED], ["--seed -1", "at least 0"]),
        (["tune", *SIZES, "--time-budget", "soon", *RECORDED], ["--time-budget soon", "seconds"]),
        (["tune", *SIZES, "--time-budget", "nan", *RECORDED], ["--time-budget nan", "positive"]),
        (["tune", *SIZES, "--time-budget", "1_0", *RECORDED], ["--time-budget 1_0", "positive"]),
        (["tune", *SIZES, "--time-budget", "1e999", *RECORDED], ["--time-budget 1e999", "positive"]),
        (["tune", *SIZES, *ONE, "--device", f"recorded:{'x' * 5000}/"], ["xxx", "too long"]),
        (["tune", *SIZES, *ONE, "--device", "recorded:./"], ["no file"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--device-name", "a/b"], ["'a/b'", "slash", "--device-name"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--device-name", "../../x"], ["slash"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--device-name", "a\nb"], [r"'a\nb'", "--device-name"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--device-name", " "], ["blank"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--device-name", "x" * 300], ["bytes", "--device-name"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--engine", "vllm", "--device-name", "µ" * 150], ["bytes"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--save-path", "x" * 300], ["too long", "--save-path"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--store", "x" * 300], ["too long", "--store"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--store", "~no-such-user/s.db"], ["home", "--store"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--engine-version", "1" * 5000], ["is not a version"]),
        (["shapes", "a\nb"], [r"'a\nb'"]),
        (["tune", *SIZES, "--out-dtype", "fp8", *RECORDED], ["--out-dtype fp8", "bfloat16"]),
        (["tune", *SIZES, "--input-type", "fp4", *RECORDED], ["--input-type", "fp4", "int8"]),
        (["tune", *SIZES, *ONE, "--device", "recorded:/nowhere", "--yes"], ["/nowhere"]),
        (["tune", *SIZES, *ONE, "--device", "recorded:h2000", "--yes"], ["h2000", "h200"]),
        (["tune", *SIZES, *ONE, "--device", "recorded:", "--yes"], ["recorded:", "recorded:h200"]),
        (["tune", *SIZES, *ONE, "--device", "tpu"], ["--device tpu", "cuda"]),
        (["tune", *SIZES, "--batch-sizes", "17", *RECORDED], ["M=17", "2112×7168"]),
        (["tune", *SIZES, *ONE, "--input-type", "int8", *RECORDED], ["int8", "recorded"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--engine", "vllm", "--engine-version", "0.33.0"], ["--engine-version"]),
        (["tune", *SIZES, *ONE, "--engine", "trtllm"], ["--engine", "trtllm", "sglang"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--gpus", "one"], ["--gpus one", "--gpus 0"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--gpus", "0,"], ["--gpus 0,", "--gpus 0,1"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--gpus", "0,1,0"], ["--gpus 0,1,0", "twice"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--gpus", "9" * 5000], ["--gpus 999", "indices"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--gpus", "٠"], ["--gpus ٠", "indices"]),
        (["tune", *SIZES, *ONE, *RECORDED, *RAY, "--gpus", "0"], ["--gpus 0", "--executor ray"]),
        (["tune", *SIZES, *ONE, *RECORDED, *RAY, "--ray-address", "head"], ["--ray-address head", "HOST:PORT"]),
        (["tune", *SIZES, *ONE, *RECORDED, *RAY, "--ray-address", "ray://h:1"], ["ray://h:1", "on a node"]),
        (["tune", *SIZES, *ONE, *RECORDED, *RAY, "--ray-address", "127.0.0.1:1"], ["127.0.0.1:1", "ray start --head"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--ray-address", "x:1"], ["--ray-address", "--executor ray"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--batch"], ["--batch", "--help"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--store", "missing/s.db"], ["missing", "--store"]),
        (["tune", *SIZES, *ONE, *RECORDED, "--store", "."], ["folder", "--store"]),
        (["export", "recording"], ["-o"]),
        (["export", "recording", "-o", "x.gz", "--overwrite"], ["--overwrite", "export configs"]),
        (["export", "configs", "-o", "x.gz"], ["--output", "export recording"]),
        (["export", "configs", "--store", "absent.db"], ["absent.db", "--store"]),
        (["export"], ["configs,recording", "--help"]),
        (["export", "recording", "-o", "/dev/null"], ["/dev/null", "not a regular file"]),
        (["shapes"], ["MODEL", "--from-log", "--help"]),
        (["shapes", "deepseek-v3", "--from-log", "a.log"], ["--from-log a.log", "deepseek-v3", "not both"]),
        (["shapes", "deepseek-v3", "--tp-size", "0"], ["--tp-size 0", "at least 1"]),
        (
            ["shapes", "deepseek-v3", "--engine", "vllm", "--shared-experts-fusion"],
            ["--shared-experts-fusion", "sglang"],
        ),
        (["shapes", "deepseek-v3", "--revision", "v1"], ["'v1'", "hub"]),
        (["shapes", "no-such-model", "deepseek-v3"], ["no-such-model", "hub id"]),
        (["shapes", "deepseek-v3", "--engine-version", "1"], ["--engine-version 1", "--engine"]),
        (["install"], ["configs", "no such file"]),
        (["install", "--undo", "a.json"], ["a.json", "--undo"]),
        (["polish"], ["polish", "choose from tune, shapes, "]),
        (["--verbose"], ["--verbose", "--help"]),
    ],
)
def test_wrong_input_is_one_message_and_changes_nothing(arguments, said, capsys, empty_folder):
    message = refused(capsys, *arguments)
    for part in said:
        assert part in message
    assert list(empty_folder.iterdir()) == []


def test_a_store_that_is_no_database_is_refused_and_left_alone(capsys, empty_folder):
    store = empty_folder / "notes.db"
    store.write_text("my notes, not a database, but long enough to have a header" * 3)
    before = store.read_bytes()
    assert "notes.db" in refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--store", str(store))
    assert store.read_bytes() == before
    assert not (empty_folder / "configs").exists()


def test_a_folder_that_is_a_file_is_refused_before_a_store_appears(capsys, empty_folder):
    (empty_folder / "taken").write_text("")
    assert "taken" in refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--save-path", "taken")
    assert [p.name for p in empty_folder.iterdir()] == ["taken"]


@pytest.mark.parametrize("store", [FILE, f".blockscale/{FILE}.lock", ".blockscale/s.db"])
def test_a_store_never_lies_where_files_are_written(store, capsys, empty_folder):
    (empty_folder / "configs").symlink_to("elsewhere")
    (empty_folder / "elsewhere" / "sglang" / ".blockscale").mkdir(parents=True)
    for folder in ("configs", "elsewhere"):
        path = f"{folder}/sglang/{store}"
        assert "where the files are written" in refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--store", path)
        assert not (empty_folder / path).exists()


@pytest.mark.parametrize("taken", [FILE, f".blockscale/{FILE.removesuffix('.json')}.meta.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_cannot_be_merged_into_is_refused_before_anything_is_measured(taken, make, capsys, empty_folder):
    path = empty_folder / "out" / taken
    path.parent.mkdir(parents=True)
    make(path)
    before = sorted(empty_folder.rglob("*"))
    message = refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--save-path", "out")
    assert taken in message
    assert "--save-path" in message
    assert sorted(empty_folder.rglob("*")) == before


def test_a_working_folder_that_is_gone_is_one_message(capsys, empty_folder):
    folder = empty_folder / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    try:
        assert "store" in refused(capsys, "tune", *SIZES, *ONE, *RECORDED)
    finally:
        os.chdir(empty_folder)


def test_a_recording_that_was_cut_is_refused(capsys, empty_folder):
    (empty_folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"record": "environment"}\n')[:-6])
    assert "cut.jsonl.gz" in refused(capsys, "tune", *SIZES, *ONE, "--device", "recorded:cut.jsonl.gz", "--yes")


def test_ray_without_the_extra_names_the_install_command(capsys, empty_folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "blockscale[ray]"' in refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--executor", "ray")


def test_existing_folders_survive_a_refusal(capsys, empty_folder):
    (empty_folder / "out").mkdir()
    refused(capsys, "tune", *SIZES, *ONE, *RECORDED, "--save-path", "out/deeper", "--store", "missing/s.db")
    assert [p.name for p in empty_folder.iterdir()] == ["out"]
    assert list((empty_folder / "out").iterdir()) == []
