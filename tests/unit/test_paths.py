"""What stands at a path is told without opening it, and what cannot be told is one refusal."""

import os
import socket

import pytest

from blockscale.errors import InputError
from blockscale.paths import PathKind, at_home, kind_at


def test_files_folders_and_links_to_them(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert kind_at(tmp_path, "x") is PathKind.FOLDER
    assert kind_at(tmp_path / "file", "x") is PathKind.FILE
    assert kind_at(tmp_path / "link", "x") is PathKind.FILE


def test_nothing_there(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    for missing in ("none", "none/deeper", "file/deeper", "dangling"):
        assert kind_at(tmp_path / missing, "x") is None


def test_what_would_block_a_reader_is_something_else(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for other in ("pipe", "socket", "/dev/zero"):
            assert kind_at(tmp_path / other, "x") is PathKind.OTHER


def test_what_cannot_be_told_is_refused_with_reason_and_way_out(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path, reason in ((tmp_path / "loop", "symbolic links"), (tmp_path / ("x" * 300), "too long")):
        with pytest.raises(InputError, match=rf"{reason}\): choose another\."):
            kind_at(path, "choose another")


def test_home_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert at_home(tmp_path.joinpath("a"), "x") == tmp_path / "a"
    assert at_home(type(tmp_path)("~/a"), "x") == tmp_path / "a"
    with pytest.raises(InputError, match="~no-such-user"):
        at_home(type(tmp_path)("~no-such-user/a"), "x")
