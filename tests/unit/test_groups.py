"""Devices of two models tuned at the same time: files, trials and events of each, and what a failure of one costs."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.cli import devices as cli_devices
from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.engines import engine
from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Device, Done
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.measure.protocol import GpuInfo
from blockscale.problem import WeightShape
from blockscale.recording import Recording, embedded, load_recording
from blockscale.report.lines import json_line
from blockscale.store import Store
from blockscale.tuning.events import (
    Event,
    Note,
    ProblemResult,
    ProblemStarted,
    RunStarted,
    RunSummary,
    TimeSpent,
    TrialFinished,
)
from blockscale.tuning.groups import Group, run_groups
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune

NAMES = ("NVIDIA H200", "NVIDIA H100")
SHAPE = WeightShape(2112, 7168)
RUN = ["tune", "--N", "2112", "--K", "7168", "--engine", "sglang", "--batch-sizes", "1", "16", "--trials", "12"]


class Renamed(ReplayDevice):
    """The recorded H200 under another name."""

    def __init__(self, recording: Recording, name: str) -> None:
        super().__init__(recording)
        self._name = name

    @property
    def spec(self):
        return replace(super().spec, name=self._name)

    @property
    def environment(self):
        return replace(super().environment, device_name=self._name)


class Waiting(Renamed):
    """Never finishes anything; being closed ends the wait, as of a real device."""

    def __init__(self, recording: Recording, name: str) -> None:
        super().__init__(recording, name)
        self.waits, self._closed = threading.Event(), threading.Event()

    def next_done(self) -> Done:
        self.waits.set()
        self._closed.wait()
        raise IncompleteRunError("the device was closed")

    def close(self) -> None:
        self._closed.set()


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load_recording(embedded("h200"))


@pytest.fixture
def groups(recording, tmp_path) -> Callable[..., list[Group]]:
    """Groups of these devices, by default the recorded H200 under two names."""

    def make(*devices: Device, folder: str = "out") -> list[Group]:
        request = TuneRequest((SHAPE,), (1, 16), (("sglang", tmp_path / folder),), trials=12)
        return [
            Group(request, (engine("sglang"),), device)
            for device in devices or [Renamed(recording, name) for name in NAMES]
        ]

    return make


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("N=*.json")}


def test_each_model_gets_the_files_and_trials_that_a_run_of_its_own_gives(groups, recording, tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        summary = run_groups(groups(), store, lambda event: None)
    with Store.open(tmp_path / "alone.db") as store:
        alone = [run_tune(g.request, g.engines, g.device, store, lambda event: None) for g in groups(folder="alone")]
    assert len(files(tmp_path / "out")) == 2
    assert files(tmp_path / "out") == files(tmp_path / "alone")
    assert summary.complete
    assert summary.trials_measured == sum(s.trials_measured for s in alone)
    assert [r.device_name for r in summary.results] == [name for name in NAMES for _ in range(2)]
    assert [replace(r, device_name="") for r in summary.results] == [r for s in alone for r in s.results]
    assert {path.name for path in summary.files} == set(files(tmp_path / "out"))


def test_events_name_their_device_come_one_at_a_time_and_end_in_one_summary(groups, tmp_path):
    events: list[Event] = []
    showing = threading.Lock()

    def observe(event: Event) -> None:
        assert showing.acquire(blocking=False)
        events.append(event)
        showing.release()

    with Store.open(tmp_path / "s.db") as store:
        run_groups(groups(), store, observe)
    named = [e for e in events if isinstance(e, ProblemStarted | TrialFinished | ProblemResult | TimeSpent)]
    assert {e.device_name for e in named} == set(NAMES)
    assert {e.device.name for e in events if isinstance(e, RunStarted)} == set(NAMES)
    assert [e for e in events if isinstance(e, RunSummary)] == events[-1:]


def test_a_single_group_is_a_plain_run(groups, tmp_path):
    events: list[Event] = []
    with Store.open(tmp_path / "s.db") as store:
        run_groups(groups()[:1], store, events.append)
    assert all(e.device_name == "" for e in events if isinstance(e, ProblemResult | TrialFinished))
    problems = json.loads(json_line(events[-1]) or "")["problems"]
    assert all("device" not in problem for problem in problems)


def test_a_group_that_loses_its_device_saves_and_the_others_go_on(groups, recording, tmp_path):
    events: list[Event] = []
    lost = FaultyDevice(Renamed(recording, NAMES[0]), FaultPlan(at_trial={20: Fault.DEVICE_LOST}))
    with (
        Store.open(tmp_path / "s.db") as store,
        pytest.raises(IncompleteRunError, match=f"{NAMES[0]}: .*was lost"),
    ):
        run_groups(groups(lost, Renamed(recording, NAMES[1])), store, events.append)
    assert isinstance(events[-1], RunSummary)
    assert not events[-1].complete
    assert {r.device_name for r in events[-1].results} == {NAMES[1]}
    assert any(isinstance(e, Note) and e.warning and "The other GPUs go on." in e.text for e in events)
    with Store.open(tmp_path / "s.db") as store:
        again = run_groups(groups(), store, lambda event: None)
        whole = files(tmp_path / "out")
    assert again.complete
    assert again.trials_reused >= 19
    with Store.open(tmp_path / "fresh.db") as store:
        run_groups(groups(folder="fresh"), store, lambda event: None)
    assert files(tmp_path / "fresh") == whole


def test_groups_that_are_all_refused_are_the_users_to_mend(groups, recording, tmp_path):
    made = [replace(g, request=replace(g.request, batch_sizes=(17,))) for g in groups()]
    with Store.open(tmp_path / "s.db") as store, pytest.raises(InputError, match=f"{NAMES[0]}: .*{NAMES[1]}: "):
        run_groups(made, store, lambda event: None)


def test_ctrl_c_ends_every_group_also_one_that_waits_for_its_device(groups, recording, tmp_path):
    waiting = Waiting(recording, NAMES[0])
    stopped: list[str] = []

    def interrupt_main() -> None:
        import signal

        waiting.waits.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    class Slow(Renamed):
        """Is at work for as long as nobody has interrupted."""

        def next_done(self) -> Done:
            waiting._closed.wait()
            return super().next_done()

    def observe(event: Event) -> None:
        if isinstance(event, TrialFinished):
            stopped.append(event.device_name)

    threading.Thread(target=interrupt_main).start()
    with Store.open(tmp_path / "s.db") as store, pytest.raises(KeyboardInterrupt):
        run_groups(groups(waiting, Slow(recording, NAMES[1])), store, observe)
    assert not [t for t in threading.enumerate() if t.name.startswith("tuning")]
    assert stopped == [], "a trial that comes after it is kept, and nothing more is asked"


def test_a_reader_that_is_gone_ends_every_group(groups, tmp_path):
    def observe(event: Event) -> None:
        if isinstance(event, ProblemResult):
            raise BrokenPipeError

    with Store.open(tmp_path / "s.db") as store, pytest.raises(BrokenPipeError):
        run_groups(groups(), store, observe)


def test_the_command_line_names_the_devices_where_there_are_several(recording, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "open_devices", lambda *given: [Renamed(recording, name) for name in NAMES])
    assert main(RUN) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert f"sglang M=1 2112×7168 on {name}: " in shown
        assert f"{name}: 2 problems for sglang" in shown
        assert f"Time of {name}: " in shown
    assert "[4/4]" in shown
    assert shown[shown.index("\n\n") :].split()[0] == "device"
    assert main([*RUN, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["event"] == "summary"
    assert [p["device"] for p in summary["problems"]] == [name for name in NAMES for _ in range(2)]
    assert len(summary["files"]) == 2


def test_one_name_for_the_files_of_several_models_is_refused(recording, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "open_devices", lambda *given: [Renamed(recording, name) for name in NAMES])
    assert main([*RUN, "--device-name", "H200"]) == 2
    error = capsys.readouterr().err
    assert "--device-name H200" in error
    assert "--gpus" in error
    assert list(tmp_path.iterdir()) == []


class Opened:
    """A device as it was asked for."""

    def __init__(self, settings) -> None:
        self.indices, self.workers, self.closed = settings.gpu_indices, settings.pool.workers, False
        if 9 in self.indices:
            raise IncompleteRunError("the measuring process does not start")
        OPENED.append(self)

    def close(self) -> None:
        self.closed = True


OPENED: list[Opened] = []


@pytest.fixture
def machine(monkeypatch) -> Callable[..., None]:
    """A machine with GPUs of these names and 64 CPUs."""
    OPENED.clear()

    def make(*names: str, indices: tuple[int, ...] | None = None) -> None:
        here = [GpuInfo(i, name, 1) for i, name in zip(indices or range(len(names)), names, strict=True)]
        monkeypatch.setattr("blockscale.executor.gpus.visible_gpus", lambda: here)
        monkeypatch.setattr("blockscale.executor.local.LocalDevice", Opened)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))

    return make


@pytest.mark.parametrize(
    ("asked", "opened"),
    [
        ("all", [(0, 2, 3), (1,)]),
        ("0,2", [(0, 2)]),
        ("3,1", [(1,), (3,)]),
        ("1", [(1,)]),
    ],
)
def test_gpus_of_one_model_are_one_device(machine, asked, opened):
    machine("NVIDIA H200", "NVIDIA A10", "NVIDIA H200", "NVIDIA H200")
    assert [d.indices for d in cli_devices.open_devices("cuda", asked)] == opened


def test_compilers_share_the_cpus_that_measuring_leaves(machine):
    machine("NVIDIA H200", "NVIDIA A10", "NVIDIA H200", "NVIDIA H200")
    assert [d.workers for d in cli_devices.open_devices("cuda", "all")] == [45, 15]
    assert [d.workers for d in cli_devices.open_devices("cuda", "1")] == [32]


def test_an_index_that_is_not_here_opens_nothing(machine):
    machine("NVIDIA H200", "NVIDIA H200")
    with pytest.raises(InputError, match="--gpus 7: no such GPU; here are 0, 1"):
        cli_devices.open_devices("cuda", "0,7")
    assert OPENED == []


def test_where_one_model_does_not_start_the_others_are_closed(machine):
    machine("NVIDIA H200", "NVIDIA A10", indices=(0, 9))
    with pytest.raises(IncompleteRunError):
        cli_devices.open_devices("cuda", "all")
    assert [d.closed for d in OPENED] == [True]
