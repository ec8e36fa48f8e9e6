"""Disks that fill up or turn read-only, a database that somebody locks: one message, exit 3, and the run goes on later.

Disks are small ones in memory, mounted in a namespace of their own, where the system lets tests do so.
"""

import json
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.executor.base import Done
from blockscale.executor.replay import ReplayDevice
from blockscale.recording import embedded, load_recording
from blockscale.store import Store, database

TUNE = [
    "tune",
    "--N",
    "2112",
    "--K",
    "7168",
    "--engine",
    "sglang",
    "--trials",
    "20",
    "--batch-sizes",
    "1",
    "64",
    "4096",
]
RECORDED = [*TUNE, "--device", "recorded:h200"]
BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())", *RECORDED]

# Runs the command and, when the third trial is there, a shell command.
WITH_A_TURN = """
import subprocess, sys
from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.executor.replay import ReplayDevice
from blockscale.recording import embedded, load_recording

class Device(ReplayDevice):
    handed_back = 0
    def next_done(self):
        Device.handed_back += 1
        if Device.handed_back == 3:
            subprocess.run(sys.argv[1], shell=True, check=True)
        return super().next_done()

tune.open_devices = lambda *given: [Device(load_recording(embedded("h200")))]
sys.exit(main(sys.argv[2:]))
"""


def may_mount() -> bool:
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


mounts = pytest.mark.skipif(not may_mount(), reason="no disks may be mounted here")


def config_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("N=*.json"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*BLOCKSCALE, "--save-path", "configs"], cwd=folder, check=True, capture_output=True)
    return config_files(folder / "configs")


def in_namespace(folder: Path, steps: Sequence[str]) -> list[tuple[int, str]]:
    """Run shell commands one after the other with mounts of their own: exit code and standard error of each."""
    lines = [f"({step}) >/dev/null 2>err{i}; echo $? >code{i}" for i, step in enumerate(steps)]
    subprocess.run(["unshare", "-rm", "sh", "-c", "\n".join(lines)], cwd=folder, check=True, capture_output=True)
    codes = [int((folder / f"code{i}").read_text()) for i in range(len(steps))]
    return [(code, (folder / f"err{i}").read_text()) for i, code in enumerate(codes)]


@mounts
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    run = shlex.join([*BLOCKSCALE, "--store", "disk/s.db", "--save-path", "disk/configs"])
    (_, _), full, (_, _), again, _ = in_namespace(
        tmp_path,
        [
            "mount -t tmpfs -o size=400k tmpfs disk",
            run,
            "mount -o remount,size=40m disk",
            run,
            "cp -r disk/configs disk/s.db .",
        ],
    )
    assert full[0] == 3, full
    assert full[1].count("\n") == 1
    assert "free some space" in full[1]
    assert again[0] == 0, again
    assert config_files(tmp_path / "configs") == undisturbed
    with Store.open(tmp_path / "s.db") as store:
        tried = [(t.problem, t.candidate, t.phase) for _, t in store.trials()]
    assert len(set(tried)) == len(tried), "nothing is measured again"


@mounts
def test_an_output_folder_that_turns_read_only_loses_no_trial(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    program = [sys.executable, "-c", WITH_A_TURN]
    arguments = [*TUNE, "--yes", "--save-path", "disk/configs"]
    (_, _), failed, (_, _), again, _ = in_namespace(
        tmp_path,
        [
            "mount -t tmpfs tmpfs disk",
            shlex.join([*program, "mount -o remount,ro disk", *arguments]),
            "mount -o remount,rw disk",
            shlex.join([*program, "true", *arguments]),
            "cp -r disk/configs .",
        ],
    )
    assert failed[0] == 3, failed
    assert failed[1].count("\n") == 1
    assert "disk/configs" in failed[1]
    assert again[0] == 0, again
    assert config_files(tmp_path / "configs") == undisturbed


@mounts
@pytest.mark.parametrize("what", ["--store disk/s.db", "--save-path disk/configs"])
def test_a_folder_that_is_read_only_is_refused_before_anything_is_measured(what: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    _, refused = in_namespace(tmp_path, ["mount -t tmpfs -o ro tmpfs disk", f"{shlex.join(BLOCKSCALE)} {what}"])
    assert refused[0] == 2, refused
    assert refused[1].count("\n") == 1
    assert "disk" in refused[1]
    assert {path.name for path in tmp_path.iterdir()} <= {"disk", "err0", "err1", "code0", "code1", "configs"}
    assert not (tmp_path / "blockscale.db").exists()


class LockedAfterwards(ReplayDevice):
    """Somebody's own program locks the store when the third trial is there."""

    def __init__(self, store: Path) -> None:
        super().__init__(load_recording(embedded("h200")))
        self._store = store
        self._handed_back = 0
        self.program: sqlite3.Connection | None = None

    def next_done(self) -> Done:
        self._handed_back += 1
        if self._handed_back == 3:
            self.program = sqlite3.connect(self._store, isolation_level=None)
            self.program.execute("BEGIN IMMEDIATE")
        return super().next_done()


def test_a_database_that_somebody_locks_ends_the_run_and_it_goes_on_afterwards(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.1)
    device = LockedAfterwards(tmp_path / "blockscale.db")
    monkeypatch.setattr(tune, "open_devices", lambda *given: [device])
    arguments = [*TUNE, "--yes", "--save-path", "configs"]
    assert main(arguments) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "end the program that keeps it locked" in error
    assert device.program is not None
    device.program.close()
    monkeypatch.setattr(tune, "open_devices", lambda *given: [ReplayDevice(load_recording(embedded("h200")))])
    assert main(arguments) == 0
    assert config_files(tmp_path / "configs") == undisturbed


def test_a_network_folder_may_hold_the_files_but_not_the_store(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    table = tmp_path / "mounts"
    table.write_text(f"/dev/root / ext4 rw 0 0\nserver:/export {tmp_path}/net nfs4 rw 0 0\n")
    monkeypatch.setitem(Store.open.__func__.__kwdefaults__, "mount_table", table)
    assert main([*RECORDED, "--store", "net/s.db", "--save-path", "net/configs"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "network file system (nfs4)" in error
    assert list(Path("net").iterdir()) == []
    assert main([*RECORDED, "--save-path", "net/configs"]) == 0
    assert config_files(tmp_path / "net" / "configs") == undisturbed
    assert list(json.loads(next(iter(undisturbed.values())))) == ["1", "64", "4096"]
