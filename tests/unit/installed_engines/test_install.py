"""Tuned files in an installed engine's folder: what changes, what comes back, and what is refused."""

import importlib
import json
import os
from pathlib import Path

import pytest
from fake_engines import entry, write_config

from blockscale.cli.main import main
from blockscale.engines.atomic import replace_file
from blockscale.engines.vllm import VLLM
from blockscale.errors import InputError
from blockscale.executor import gpus
from blockscale.install import folder as install_folder
from blockscale.measure.protocol import GpuInfo
from blockscale.plugins import VARIABLE

SHAPES = [(512, 7168), (576, 7168), (640, 7168)]


@pytest.fixture(autouse=True)
def one_h200(monkeypatch):
    monkeypatch.setattr(gpus, "visible_gpus", lambda: [GpuInfo(0, "NVIDIA H200", 0)])


@pytest.fixture
def tuned(fake, tmp_path, monkeypatch):
    """Three tuned files: one that the engine has not, one that it has otherwise, and one that it has so."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs" / fake.name
    for n, k in SHAPES:
        write_config(folder / fake.file_name(n, k), 1, 16)
    write_config(fake.configs / fake.file_name(576, 7168), 1, 64, BLOCK_SIZE_N=32)
    same = (folder / fake.file_name(640, 7168)).read_bytes().rstrip(b"\n")
    (fake.configs / fake.file_name(640, 7168)).write_bytes(same)
    return folder


def contents(fake):
    return {path.name: path.read_bytes() for path in fake.configs.iterdir() if path.is_file()}


def refused(capsys, *arguments):
    assert main(["install", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_dry_run_lists_new_replaced_and_equal_and_changes_nothing(tuned, fake, capsys):
    before = sorted(fake.configs.rglob("*")), contents(fake)
    assert main(["install", "--dry-run", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["change"], each["keys"]) for each in listed] == [
        ("new", [1, 16]),
        ("replaced", [1, 16]),
        ("equal", []),
    ]
    assert {(each["engine"], each["done"]) for each in listed} == {(fake.name, False)}
    assert main(["install", "--dry-run"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert (sorted(fake.configs.rglob("*")), contents(fake)) == before


def test_installed_files_are_merged_and_read_by_the_engine(tuned, fake, capsys):
    assert main(["install", "--yes"]) == 0
    assert "restart" in capsys.readouterr().out
    loader = importlib.import_module(fake.module).get_w8a8_block_fp8_configs
    assert loader(512, 7168, 128, 128) == {1: entry(), 16: entry()}
    assert loader(576, 7168, 128, 128) == {1: entry(), 16: entry(), 64: entry(BLOCK_SIZE_N=32)}


@pytest.mark.parametrize("named", [False, True])
def test_by_default_files_that_tune_wrote_for_another_engine_are_left_out(named, tuned, fake, capsys):
    other = {"sglang": "vllm", "vllm": "sglang"}[fake.name]
    (tuned.with_name(other)).mkdir()
    (tuned.with_name(other) / fake.file_name(512, 7168)).write_text("{")
    assert main(["install", "--dry-run", "--json", *(["--engine", fake.name] if named else [])]) == 0
    assert {Path(each["source"]).parent.name for each in json.loads(capsys.readouterr().out)} == {fake.name}


def test_undo_puts_every_byte_back(tuned, fake, capsys):
    before = contents(fake)
    assert main(["install", "--yes"]) == 0
    assert main(["install", "--yes"]) == 0
    write_config(tuned / fake.file_name(576, 7168), 1, BLOCK_SIZE_M=64)
    assert main(["install", "--yes"]) == 0
    assert contents(fake) != before
    assert main(["install", "--undo"]) == 0
    assert contents(fake) == before
    assert {path.suffix for path in fake.configs.glob(".blockscale/**/*")} == {".lock"}
    capsys.readouterr()
    assert "nothing that was installed" in refused(capsys, "--undo")


def test_an_install_that_dies_at_any_write_can_be_undone_and_repeated(tuned, fake, monkeypatch, capsys):
    before = contents(fake)
    for writes in range(20):
        left = [writes]

        def dying(path, data, scratch, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            replace_file(path, data, scratch)

        monkeypatch.setattr(install_folder, "replace_file", dying)
        code = main(["install", "--yes"])
        monkeypatch.setattr(install_folder, "replace_file", replace_file)
        if main(["install", "--undo"]) == 2:
            assert writes == 0
        assert contents(fake) == before
        if code == 0:
            break
        assert code == 130
    assert code == 0
    assert writes > 3


def test_a_file_of_a_newer_engine_is_not_undone_and_the_older_ones_is_kept(tuned, fake, capsys):
    original = (fake.configs / fake.file_name(576, 7168)).read_bytes()
    assert main(["install", "--yes"]) == 0
    newer = write_config(fake.configs / fake.file_name(576, 7168), 2)
    expected = newer.read_bytes()
    capsys.readouterr()
    assert main(["install", "--undo", "--json"]) == 0
    undone = {Path(each["target"]).name: each for each in json.loads(capsys.readouterr().out)}
    outcomes = {name: each["outcome"] for name, each in undone.items()}
    assert outcomes == {newer.name: "left", fake.file_name(512, 7168): "removed"}
    assert newer.read_bytes() == expected
    assert Path(undone[newer.name]["original"]).read_bytes() == original
    assert undone[fake.file_name(512, 7168)]["original"] is None


def test_an_install_over_a_newer_engine_goes_back_to_the_newer_ones_file(tuned, fake):
    assert main(["install", "--yes"]) == 0
    newer = write_config(fake.configs / fake.file_name(576, 7168), 2)
    expected = newer.read_bytes()
    assert main(["install", "--yes"]) == 0
    assert newer.read_bytes() != expected
    assert main(["install", "--undo"]) == 0
    assert newer.read_bytes() == expected


def test_a_file_that_the_engine_could_not_read_is_replaced_and_comes_back(tuned, fake):
    broken = fake.configs / fake.file_name(512, 7168)
    broken.write_bytes(b"{")
    assert main(["install", "--yes"]) == 0
    assert set(json.loads(broken.read_bytes())) == {"1", "16"}
    assert main(["install", "--undo"]) == 0
    assert broken.read_bytes() == b"{"


def test_a_folder_that_may_not_be_written_names_the_variable(tuned, fake, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = refused(capsys, "--yes")
    assert str(fake.configs) in message
    assert VARIABLE in message
    assert list(fake.configs.glob(".*")) == []


def test_a_read_only_file_system_names_the_variable(tuned, fake, monkeypatch, capsys):
    def read_only(path):
        raise InputError(f"{path} cannot be written (Read-only file system).") from OSError(30, "Read-only file system")

    monkeypatch.setattr(install_folder, "require_writable", read_only)
    message = refused(capsys, "--yes")
    assert "Read-only file system" in message
    assert VARIABLE in message


def test_files_for_another_gpu_are_refused(tuned, fake, capsys):
    write_config(tuned / fake.file_name(512, 7168, "NVIDIA_H20"), 1, 16)
    before = contents(fake)
    message = refused(capsys, "--yes")
    assert "NVIDIA_H20 " in message
    assert "NVIDIA H200" in message
    assert VARIABLE in message
    assert contents(fake) == before


def test_without_a_gpu_files_for_any_are_installed(tuned, fake, monkeypatch):
    def none():
        raise InputError("no GPU")

    monkeypatch.setattr(gpus, "visible_gpus", none)
    path = write_config(tuned / fake.file_name(512, 7168, "NVIDIA_H20"), 1, 16)
    assert main(["install", "--yes"]) == 0
    assert (fake.configs / path.name).exists()


def test_files_spelled_for_another_engine_are_refused(tuned, fake, capsys):
    other = {"sglang": "vllm", "vllm": "sglang"}[fake.name]
    message = refused(capsys, str(tuned.rename(tuned.with_name("mine"))), "--engine", other)
    assert other in message


def test_an_engine_that_is_not_installed_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VLLM, "installed", classmethod(lambda cls: None))
    write_config(tmp_path / "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json", 1, 16)
    message = refused(capsys, ".")
    assert "vllm is not installed" in message
    assert VARIABLE in message


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_an_engine_whose_loader_has_moved_is_refused(name, install_engine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fake = install_engine(name, place="elsewhere/loader.py")
    write_config(tmp_path / "configs" / name / fake.file_name(512, 7168), 1, 16)
    message = refused(capsys)
    assert "no place known" in message
    assert VARIABLE in message


@pytest.mark.parametrize("content", ["{", "{}", '{"1": null}', '{"note": 1}', "[]"])
def test_a_file_that_would_harm_serving_is_refused(content, tuned, fake, capsys):
    path = tuned / fake.file_name(512, 7168)
    path.write_text(content)
    before = contents(fake)
    message = refused(capsys, "--yes")
    assert path.name in message
    assert contents(fake) == before


def test_two_files_of_one_name_are_refused(tuned, fake, capsys, tmp_path):
    write_config(tmp_path / "again" / fake.name / fake.file_name(512, 7168), 1, 16)
    assert "one name" in refused(capsys, "configs", "again")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "configs"),
        (["--undo"], "nothing that was installed"),
        (["--undo", "a.json"], "a.json with --undo"),
        (["--undo", "--dry-run"], "--dry-run"),
        (["."], "no config file"),
    ],
)
def test_wrong_arguments_are_one_message(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("answer", "installed"), [("n", False), ("", True)])
def test_a_terminal_is_asked_before_files_of_the_engine_are_replaced(answer, installed, tuned, fake, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    before = contents(fake)
    assert main(["install"]) == (0 if installed else 2)
    assert (contents(fake) != before) is installed
