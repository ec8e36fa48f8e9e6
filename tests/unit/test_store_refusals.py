"""Every store that cannot be used is refused with one message, and left as it was."""

import os
import random
import re
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.errors import IncompleteRunError, InputError
from blockscale.hardware import H200
from blockscale.problem import Candidate, Environment, GemmShape, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.recording import load_recording
from blockscale.store import Store, export_recording
from blockscale.store.filesystem import network_filesystem

ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1")
TRIAL = Trial(
    Problem(GemmShape(16, 512, 1024)), Candidate(Kernel.FP8, TileConfig(16, 64, 128)), TrialStatus.OK, samples_us=(3.0,)
)


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        for _ in range(500):
            store.add(ENVIRONMENT, TRIAL)
    return path


def assert_refused(path, rule, **options):
    before = path.read_bytes() if path.is_file() else None
    beside = {file.name for file in path.parent.iterdir()} if path.parent.is_dir() else set()
    with pytest.raises(InputError, match=rule) as refusal:
        Store.open(path, **options)
    assert str(path) in str(refusal.value)
    assert "--store" in str(refusal.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    after = {file.name for file in path.parent.iterdir()} if path.parent.is_dir() else set()
    assert after - beside <= {path.name + ".lock"}


def test_store_in_use_by_this_process(filled):
    with Store.open(filled):
        assert_refused(filled, rf"in use by another run \(pid {os.getpid()}\)")
        assert_refused(filled, rf"in use by another run \(pid {os.getpid()}\)")
    Store.open(filled).close()


def test_store_in_use_by_another_process_until_that_is_killed(filled):
    script = f"from pathlib import Path; from blockscale.store import Store; s = Store.open(Path({str(filled)!r})); "
    script += "print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        assert_refused(filled, rf"pid {other.pid}")
        other.kill()
    with Store.open(filled) as store:
        assert len(list(store.trials())) == 500


def test_one_store_under_two_names_is_one(filled, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(filled)
    with Store.open(link), pytest.raises(InputError, match="in use"):
        Store.open(filled)


def test_store_from_a_newer_version(filled):
    with sqlite3.connect(filled) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert_refused(filled, r"newer blockscale.*99.*upgrade")


def test_text_file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("a shopping list\n" * 20)
    assert_refused(path, "not a blockscale store")


def test_cut_header(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(b"SQLite format 3\0")
    assert_refused(path, "not a blockscale store")


@pytest.mark.parametrize("pragma", ["PRAGMA user_version = 7", "PRAGMA application_id = 77", "SELECT 1"])
def test_database_of_another_program(tmp_path, pragma):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.execute(pragma)
    connection.close()
    assert_refused(path, "another program's database")


def test_damaged_pages(filled):
    content = bytearray(filled.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    filled.write_bytes(content)
    assert_refused(filled, "damaged")


def test_cut_store(filled):
    filled.write_bytes(filled.read_bytes()[: 4096 * 3 + 100])
    assert_refused(filled, "damaged")


def test_folder_and_missing_folder(tmp_path):
    assert_refused(tmp_path, "is a folder")
    assert_refused(tmp_path / "missing" / "store.db", "does not exist")


def test_missing_store_where_one_must_exist(tmp_path):
    assert_refused(tmp_path / "store.db", "does not exist", create=False)
    assert not (tmp_path / "store.db").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    try:
        assert_refused(tmp_path / "store.db", "cannot be written")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no file system here that even root cannot write")
def test_file_system_that_takes_no_files():
    with pytest.raises(InputError, match=r"/proc/.*store\.db cannot be"):
        Store.open(Path("/proc/self/store.db"))


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local\\040disk xfs rw 0 0
//server/share /mnt/share cifs rw 0 0
me@server: /mnt/ssh fuse.sshfs rw 0 0
/dev/sdc1 /mnt/ntfs fuseblk rw 0 0
server:/over /data nfs rw 0 0
/dev/sdd1 /data ext4 rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/store.db", None),
        ("/home/me/store.db", "nfs4"),
        ("/home/local disk/store.db", None),
        ("/homestead/store.db", None),
        ("/mnt/share/store.db", "cifs"),
        ("/mnt/ssh/a/store.db", "fuse.sshfs"),
        ("/mnt/ntfs/store.db", None),
        ("/data/store.db", None),
    ],
)
def test_longest_mount_point_decides_whether_a_place_is_on_a_network(tmp_path, path, kind):
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert network_filesystem(Path(path), table) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "9p", "beegfs", "gpfs"]
)
def test_store_on_a_network_file_system(tmp_path, kind):
    table = tmp_path / "mounts"
    table.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    assert_refused(tmp_path / "store.db", rf"network file system \({re.escape(kind)}\)", mount_table=table)


def test_system_without_a_mount_table_is_taken_as_local(tmp_path):
    Store.open(tmp_path / "store.db", mount_table=tmp_path / "nowhere").close()
    assert (tmp_path / "store.db").exists()


def test_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "store.db"
    path.touch()
    with Store.open(path) as store:
        store.add(ENVIRONMENT, TRIAL)
    with Store.open(path, create=False) as store:
        assert len(list(store.trials())) == 1


def test_export_of_several_environments_asks_which(filled, tmp_path):
    other = replace(ENVIRONMENT, torch="2.14")
    target = tmp_path / "r.jsonl"
    with Store.open(filled) as store:
        store.add(other, TRIAL)
        with pytest.raises(InputError) as refusal:
            export_recording(store, target)
        assert ENVIRONMENT.key in str(refusal.value)
        assert other.key in str(refusal.value)
        with pytest.raises(InputError, match="NVIDIA H20 "):
            export_recording(store, target, device_name="NVIDIA H20 ")
        assert not target.exists()
        assert export_recording(store, target, environment_key=other.key[:8]) == 1
    assert load_recording(target).environment == other


def test_export_needs_trials_and_limits(tmp_path):
    target = tmp_path / "r.jsonl"
    unknown = replace(ENVIRONMENT, device_name="NVIDIA Z9")
    with Store.open(tmp_path / "store.db") as store:
        with pytest.raises(InputError, match="no trial"):
            export_recording(store, target)
        store.add(unknown, TRIAL)
        with pytest.raises(InputError, match="limits of NVIDIA Z9"):
            export_recording(store, target)
        store.register(unknown, replace(H200, name="NVIDIA Z9"))
        assert export_recording(store, target) == 1


def test_export_leaves_out_what_was_never_measured(tmp_path):
    unrecorded = replace(TRIAL, status=TrialStatus.UNRECORDED, samples_us=())
    with Store.open(tmp_path / "store.db") as store:
        store.add(ENVIRONMENT, unrecorded)
        with pytest.raises(InputError, match="no trial"):
            export_recording(store, tmp_path / "r.jsonl")
        store.add(ENVIRONMENT, TRIAL)
        assert export_recording(store, tmp_path / "r.jsonl") == 1


DAMAGES = [
    "UPDATE trials SET status = 'x'",
    "UPDATE trials SET phase = 'x'",
    "UPDATE trials SET status = CAST(x'6fff' AS TEXT)",
    "UPDATE problems SET out_dtype = CAST(x'ff' AS TEXT)",
    "UPDATE trials SET samples_us = x'0102'",
    "UPDATE trials SET samples_us = 'text'",
    "UPDATE trials SET samples_us = x'000000000000f0ff'",
    "UPDATE trials SET labels = '{'",
    "UPDATE trials SET elapsed_s = 'x'",
    "UPDATE problems SET m = -1",
    "UPDATE problems SET quant = 'x'",
    "UPDATE candidates SET kernel = 'x'",
    "UPDATE candidates SET block_m = 'x'",
    "UPDATE candidates SET extra = '[1]'",
    "UPDATE environments SET fields = '{}'",
    "UPDATE environments SET fields = '{'",
    "UPDATE environments SET spec = '[]'",
    "DROP TABLE trials",
    "DROP TABLE snapshots",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_that_nobody_wrote_are_damage_wherever_they_are_met(filled, damage):
    """SQLite checks pages, not what stands in them."""
    with Store.open(filled) as store:
        store.register(ENVIRONMENT, H200)
    with sqlite3.connect(filled) as database:
        database.execute(damage)
    database.close()
    before = filled.read_bytes()
    with pytest.raises((InputError, IncompleteRunError), match=r"is damaged \(.*restore a copy"):
        use_everything(filled)
    assert filled.read_bytes() == before


def test_damage_anywhere_is_never_an_error_of_our_own(filled):
    """Bytes are changed here and there: either nothing that is read was hit, or the message says that it was."""
    whole, hit = filled.read_bytes(), 0
    for seed in range(100):
        generator = random.Random(seed)
        data = bytearray(whole)
        for _ in range(generator.choice([1, 5, 25])):
            data[generator.randrange(100, len(data))] = generator.randrange(256)
        filled.write_bytes(data)
        said = what_is_said_of(filled)
        hit += bool(said)
        assert not said or "damaged" in said or "another program's" in said
    assert hit > 10


def what_is_said_of(path):
    try:
        use_everything(path)
    except (InputError, IncompleteRunError) as error:
        return str(error)
    return ""


def test_text_that_is_no_utf_8_spoils_no_trial(filled):
    with sqlite3.connect(filled) as database:
        database.execute("UPDATE trials SET message = CAST(x'61ff' AS TEXT)")
    database.close()
    with Store.open(filled) as store:
        assert {trial.message for _, trial in store.trials()} == {"a\ufffd"}


def use_everything(path):
    with Store.open(path) as store:
        store.device_spec(ENVIRONMENT)
        store.find(ENVIRONMENT, TRIAL.problem, TRIAL.candidate, Phase.SCREEN)
        list(store.trials())


def test_a_kept_value_that_is_no_json_is_damage(filled):
    with Store.open(filled) as store:
        store.snapshot("run", "name", list)
    with sqlite3.connect(filled) as database:
        database.execute("UPDATE snapshots SET value = '{'")
    database.close()
    with Store.open(filled) as store, pytest.raises(IncompleteRunError, match="is damaged"):
        store.snapshot("run", "name", list)


def test_halves_of_surrogate_pairs_are_kept(tmp_path):
    """JSON files may hold them, and SQLite's text may not."""
    with Store.open(tmp_path / "s.db") as store:
        kept = store.snapshot("run", "name", lambda: {"\ud800": "\udfff"})
        assert kept == {"\ud800": "\udfff"} == store.snapshot("run", "name", dict)


def test_pipes_and_devices_are_refused_unopened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "pipe, socket or device")
    assert_refused(Path("/dev/null"), "pipe, socket or device")


@pytest.mark.parametrize("name", ["loop", "x" * 300, "x/" * 3000 + "x", "~no-such-user/s.db"])
def test_paths_that_lead_nowhere(tmp_path, monkeypatch, name):
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--store"):
        Store.open(Path(name))
    assert [p.name for p in tmp_path.iterdir()] == ["loop"]


def test_an_empty_file_holds_nothing_to_export(tmp_path):
    (tmp_path / "s.db").touch()
    assert_refused(tmp_path / "s.db", "is empty", create=False)


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal", ".lock"])
def test_a_recording_never_takes_the_place_of_the_store_it_is_made_from(filled, tmp_path, ending):
    (tmp_path / "link").symlink_to(tmp_path)
    with Store.open(filled) as store:
        store.register(ENVIRONMENT, H200)
        for folder in (tmp_path, tmp_path / "link"):
            with pytest.raises(InputError, match="belongs to the store"):
                export_recording(store, folder / f"store.db{ending}")
    with Store.open(filled) as store:
        assert len(list(store.trials())) == 500
