"""``--gpus`` on a recorded device: so many GPUs like the recorded one, in virtual time."""

import json

import pytest

from blockscale.cli.devices import open_devices
from blockscale.cli.main import main
from blockscale.errors import InputError

TUNE = ["tune", "--N", "2112", "--K", "7168", "--engine", "sglang", "--batch-sizes", "1", "16", "64", "--trials", "5"]


@pytest.mark.parametrize(("gpus", "count"), [("all", 1), ("3", 1), ("0,2", 2), (",".join(map(str, range(64))), 64)])
def test_indices_are_counted_and_all_is_one(gpus, count):
    (device,) = open_devices("recorded:h200", gpus)
    assert device.clock().gpus == count


def test_more_gpus_than_a_machine_has_are_refused():
    with pytest.raises(InputError, match="65 recorded GPUs are too many; give at most 64"):
        open_devices("recorded:h200", ",".join(map(str, range(65))))


def test_a_run_on_four_recorded_gpus_writes_what_one_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {}
    for gpus in ("0", "0,1,2,3"):
        folder = tmp_path / str(len(gpus))
        where = ["--store", f"{len(gpus)}.db", "--save-path", str(folder), "--json"]
        assert main([*TUNE, "--device", "recorded:h200", "--gpus", gpus, *where]) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (time,) = [event for event in events if event["event"] == "time"]
        files[time["gpus"]] = [path.read_bytes() for path in folder.glob("N=*.json")]
    assert files[1] == files[4] != []
