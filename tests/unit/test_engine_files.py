"""Config files: what reading refuses, what merging keeps, and what a reader sees meanwhile."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.engines import (
    UnreadableConfigFile,
    engine,
    merge_into,
    read_config_file,
    require_writable,
    verify_written,
)
from blockscale.engines.files import sidecar_path
from blockscale.errors import IncompleteRunError, InputError
from blockscale.problem import QuantScheme, WeightShape

ENTRY = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
WEIGHT = WeightShape(512, 7168)
NAME = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


def files_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_file())


def test_a_new_file_looks_like_the_shipped_ones(path: Path) -> None:
    report = merge_into(path, {16: ENTRY}, {16: {"time_us": 8.9}})
    fields = ",\n".join(f'        "{key}": {value}' for key, value in ENTRY.items())
    assert path.read_text() == f'{{\n    "16": {{\n{fields}\n    }}\n}}\n'
    assert report.changed
    assert report.entries == {16: ENTRY}
    assert report.kept_aside is None
    assert files_in(path.parent) == [NAME]


def test_merging_keeps_what_was_there_and_sorts_by_number(path: Path) -> None:
    odd = {**ENTRY, "grf_mode": "256", "SWAP_AB": True}
    path.write_text(json.dumps({"4096": odd, "1": None}))
    merge_into(path, {16: ENTRY}, {})
    assert list(json.loads(path.read_text()).items()) == [("1", None), ("16", ENTRY), ("4096", odd)]


def test_batch_sizes_are_ordered_as_numbers_not_as_text(path: Path) -> None:
    path.write_text(json.dumps({"4096": ENTRY, "2": ENTRY, "128": ENTRY}))
    merge_into(path, {16: ENTRY, 1024: ENTRY}, {})
    assert list(json.loads(path.read_text())) == ["2", "16", "128", "1024", "4096"]


def test_new_entries_win_for_their_batch_sizes(path: Path) -> None:
    merge_into(path, {1: ENTRY, 16: ENTRY}, {1: {"run": "a"}, 16: {"run": "a"}})
    better = {**ENTRY, "num_stages": 5}
    merge_into(path, {16: better}, {16: {"run": "b"}})
    assert read_config_file(path).entries == {1: ENTRY, 16: better}
    assert json.loads(sidecar_path(path).read_text()) == {"1": {"run": "a"}, "16": {"run": "b"}}


def test_the_sidecar_lies_where_no_engine_reads(path: Path) -> None:
    merge_into(path, {1: ENTRY}, {1: {"run": "a"}})
    assert sidecar_path(path) == path.parent / ".blockscale" / NAME.replace(".json", ".meta.json")
    assert sidecar_path(path).is_file()


def test_nothing_is_rewritten_where_nothing_changes(path: Path) -> None:
    merge_into(path, {1: ENTRY}, {1: {"run": "a"}})
    before = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in (path, sidecar_path(path))]
    report = merge_into(path, {1: ENTRY}, {1: {"run": "a"}})
    assert not report.changed
    assert [(each.stat().st_ino, each.stat().st_mtime_ns) for each in (path, sidecar_path(path))] == before


def test_a_record_that_differs_in_its_date_alone_is_no_news(path: Path) -> None:
    record = {"environment": {"details": (("cuda", "13.0"),)}, "time_us": 9.0}
    merge_into(path, {1: ENTRY}, {1: {**record, "written": "2026-01-01"}})
    before = sidecar_path(path).read_bytes()
    merge_into(path, {1: ENTRY}, {1: {**record, "written": "2026-01-02"}})
    assert sidecar_path(path).read_bytes() == before
    merge_into(path, {1: ENTRY}, {1: {**record, "time_us": 8.0, "written": "2026-01-02"}})
    assert json.loads(sidecar_path(path).read_text())["1"]["written"] == "2026-01-02"


def test_no_new_entries_write_no_file(path: Path) -> None:
    assert not merge_into(path, {}, {}).changed
    assert not path.exists()


UNREADABLE = {
    "truncated": '{"1": {"BLOCK_SIZE_M": 64',
    "list": "[]",
    "note": '{"triton_version": "3.6.0", "1": {}}',
    "twice": '{"1": {}, "1": {}}',
    "twice-as-number": '{"1": {}, "01": {}}',
    "number-entry": '{"1": 3}',
    "empty": "",
    "bom": "\ufeff{}",
    "deep": "[" * 100_000,
    "float-key": '{"1.5": {}}',
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_a_loader_would_stumble_over_is_kept_aside(path: Path, kind: str) -> None:
    path.write_text(UNREADABLE[kind], encoding="utf-8")
    with pytest.raises(UnreadableConfigFile, match="no config file"):
        read_config_file(path)
    report = merge_into(path, {16: ENTRY}, {})
    assert report.entries == read_config_file(path).entries == {16: ENTRY}
    assert report.kept_aside == path.with_name(f"{NAME}.unreadable-1")
    assert report.kept_aside.read_text(encoding="utf-8") == UNREADABLE[kind]
    assert report.kept_aside.name in report.notes[0]


def test_bytes_that_are_no_text_are_kept_aside(path: Path) -> None:
    path.write_bytes(b'{"1": {"\xff": 1}}')
    report = merge_into(path, {16: ENTRY}, {})
    assert report.kept_aside is not None
    assert report.kept_aside.read_bytes() == b'{"1": {"\xff": 1}}'


def test_files_kept_aside_are_never_overwritten(path: Path) -> None:
    for number, text in enumerate(["[1]", "[2]"], start=1):
        path.write_text(text)
        report = merge_into(path, {16: ENTRY}, {})
        assert report.kept_aside == path.with_name(f"{NAME}.unreadable-{number}")
    assert path.with_name(f"{NAME}.unreadable-1").read_text() == "[1]"
    path.write_text("[2]")
    assert merge_into(path, {16: ENTRY}, {}).kept_aside == path.with_name(f"{NAME}.unreadable-2")


def test_an_unreadable_sidecar_does_not_stop_the_merge(path: Path) -> None:
    merge_into(path, {1: ENTRY}, {1: {"run": "a"}})
    sidecar_path(path).write_text("{")
    merge_into(path, {2: ENTRY}, {2: {"run": "b"}})
    assert json.loads(sidecar_path(path).read_text()) == {"2": {"run": "b"}}


def test_the_file_can_be_read_by_others_as_before(path: Path) -> None:
    merge_into(path, {1: ENTRY}, {})
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o664)
    merge_into(path, {2: ENTRY}, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_full_disk_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge_into(path, {1: ENTRY}, {})
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IncompleteRunError, match="No space left"):
        merge_into(path, {2: ENTRY}, {})
    assert path.read_bytes() == before
    assert files_in(path.parent) == [NAME]
    assert not list((path.parent / ".blockscale").glob("*.tmp"))
    monkeypatch.undo()
    assert set(merge_into(path, {2: ENTRY}, {}).entries) == {1, 2}


def test_folders_are_made_or_refused(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/configs")):
        with pytest.raises(InputError, match="--save-path"):
            require_writable(folder)
        with pytest.raises(InputError, match="--save-path"):
            merge_into(folder / NAME, {1: ENTRY}, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="Permission denied"):
        require_writable(tmp_path)
    tmp_path.chmod(0o755)


def test_a_folder_in_the_files_place_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        merge_into(path, {1: ENTRY}, {})


def test_a_missing_file_is_the_persons_mistake(path: Path) -> None:
    with pytest.raises(InputError, match="existing config file"):
        read_config_file(path)


def test_success_is_claimed_only_for_what_the_engine_would_find(path: Path) -> None:
    eng, quant = engine("sglang", "0.5.23"), QuantScheme()
    merge_into(path, {1: ENTRY, 64: {**ENTRY, "num_warps": 8}}, {})
    verify_written(path, eng, WEIGHT, quant, "NVIDIA H200", {1: ENTRY})
    with pytest.raises(IncompleteRunError, match="M = 64"):
        verify_written(path, eng, WEIGHT, quant, "NVIDIA H200", {64: ENTRY})
    with pytest.raises(IncompleteRunError, match="would not find"):
        verify_written(path, engine("vllm"), WEIGHT, quant, "NVIDIA H200", {1: ENTRY})
    with pytest.raises(IncompleteRunError, match="NVIDIA_H100"):
        verify_written(path, eng, WEIGHT, quant, "NVIDIA H100", {1: ENTRY})
    path.write_text("{")
    with pytest.raises(IncompleteRunError, match="no config file"):
        verify_written(path, eng, WEIGHT, quant, "NVIDIA H200", {1: ENTRY})


WRITERS, KEYS_EACH = 6, 8
WRITER = """
import sys
from pathlib import Path
from blockscale.engines import merge_into
path, writer, writers, keys, entry = Path(sys.argv[1]), *map(int, sys.argv[2:5]), eval(sys.argv[5])
sys.stdin.readline()
for number in range(keys):
    m = number * writers + writer + 1
    merge_into(path, {m: entry}, {m: {"writer": writer}})
"""


def test_writers_at_once_lose_nothing_and_readers_see_whole_files(path: Path) -> None:
    arguments = (str(WRITERS), str(KEYS_EACH), repr(ENTRY))
    commands = [[sys.executable, "-c", WRITER, str(path), str(writer), *arguments] for writer in range(WRITERS)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    for process in writers:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    seen: set[int] = set()
    while any(process.poll() is None for process in writers):
        if path.exists():
            now = set(read_config_file(path).entries)
            assert now >= seen
            seen = now
    assert [process.returncode for process in writers] == [0] * WRITERS
    assert list(read_config_file(path).entries) == list(range(1, WRITERS * KEYS_EACH + 1))
    assert len(json.loads(sidecar_path(path).read_text())) == WRITERS * KEYS_EACH
    assert files_in(path.parent) == [NAME]
