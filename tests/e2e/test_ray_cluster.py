"""The installed command on a real Ray cluster, of this machine, whose nodes declare GPUs and are killed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.problem import TrialStatus
from blockscale.store import Store

pytest.importorskip("ray")

SCENARIOS = Path(__file__).with_name("ray_scenarios.py")
BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
TUNE = (
    "tune --N 2112 --K 7168 --device recorded:h200 --engine sglang --engine vllm --trials 20 "
    "--batch-sizes 1 16 64 256 1024 4096"
)


def alone(command: list[str]) -> list[str]:
    """The command in a network of its own, where that is permitted: Ray listens on many ports."""
    private = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    permitted = shutil.which("unshare") and subprocess.run([*private, "true"], capture_output=True).returncode == 0
    return [*private, *command] if permitted else command


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("configs/*/N=*.json"))}


def keys(file: bytes) -> list[str]:
    return list(json.loads(file))


def warnings(run: dict) -> list[str]:
    return [event["text"] for event in run["events"] if event["event"] == "warning"]


def lost_trials(folder: Path, because: str) -> int:
    """How many trials failed with their GPU; their messages say why."""
    with Store.open(folder / "blockscale.db") as store:
        died = [trial for _, trial in store.trials() if trial.status is TrialStatus.WORKER_DIED]
    assert all(because in trial.message for trial in died)
    return len(died)


def test_runs_on_a_cluster_whose_nodes_come_and_go(tmp_path):
    """One test, since a cluster takes long to start: its parts follow each other on the same one."""
    done = subprocess.run(alone([sys.executable, str(SCENARIOS), str(tmp_path)]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    runs = json.loads(done.stdout.splitlines()[-1])
    here = tmp_path / "here"
    here.mkdir()
    subprocess.run([*BLOCKSCALE, *TUNE.split()], cwd=here, check=True, capture_output=True)

    undisturbed = runs["undisturbed"]
    assert undisturbed["code"] == 0, undisturbed["stderr"]
    assert warnings(undisturbed) == []
    assert {event["event"]: event for event in undisturbed["events"]}["time"]["gpus"] == 3
    expected = files_in(here)
    assert len(expected) == 2
    assert files_in(tmp_path / "undisturbed") == expected, "the same bytes as without Ray"

    # Of two GPUs of a node, of the only one, whose actor is replaced: each loss costs one trial at most.
    for name, losses, because in [("node killed", 2, "its node has died"), ("actor killed", 1, "process has died")]:
        run = runs[name]
        assert run["code"] == 0, run["stderr"]
        assert len(warnings(run)) == losses
        assert all(because in text for text in warnings(run))
        lost = lost_trials(tmp_path / name, because)
        assert lost <= losses
        assert run["events"][-1]["complete"]
        assert [keys(text) for text in files_in(tmp_path / name).values()] == [keys(text) for text in expected.values()]
        assert lost or files_in(tmp_path / name) == expected

    cut = runs["all killed"]
    assert cut["code"] == 3
    assert "no GPU of the cluster is left" in cut["stderr"]
    assert "its node has died" in cut["stderr"]
    assert "Traceback" not in cut["stderr"]
    assert lost_trials(tmp_path / "all killed", "") == 0

    refused = runs["no GPU"]
    assert refused["code"] == 2
    assert "the Ray cluster has no GPU" in refused["stderr"]
    assert refused["events"] == []
    assert list((tmp_path / "no GPU").iterdir()) == []

    continued = runs["continued"]
    assert continued["code"] == 0, continued["stderr"]
    assert continued["events"][-1]["trials_reused"] > 0
    assert files_in(tmp_path / "all killed") == expected
