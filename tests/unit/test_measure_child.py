"""Child processes: who timed out, who died and who raised; and that none outlives its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blockscale.measure import child
from blockscale.measure.child import Child, ChildDiedError, ChildRaisedError, ChildTarget, ChildTimeoutError

START_S = 60.0

BEHAVIOURS = """
import os, signal, sys

def open_echo(options):
    print("noise on standard output")
    def handle(request):
        match request:
            case "hang":
                read, write = os.pipe()
                os.read(read, 1)  # nobody ever writes
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "abort":
                print("LLVM ERROR: Cannot select: t12", file=sys.stderr, flush=True)
                os.abort()
            case "leave":
                os._exit(7)
            case "raise":
                raise ValueError("no such tile")
            case "garbage":
                from multiprocessing.connection import Connection
                Connection(os.dup(int(sys.argv[2]))).send_bytes(b"not a pickle")
            case "no length":
                os.write(int(sys.argv[2]), b"no length")
                signal.pause()
            case "negative length":
                os.write(int(sys.argv[2]), b"\\xff\\xff\\xff\\xf0")
            case "half":
                os.write(int(sys.argv[2]), b"\\0\\0\\0\\x20half")
                signal.pause()
            case "env":
                return os.environ["SEEN"]
            case "pid":
                return os.getpid()
            case "ptxas":
                import subprocess
                return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid
        return options, request
    return handle

def open_broken(options):
    import there_is_no_such_module
"""


@pytest.fixture
def behaviours(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "behaviours.py").write_text(BEHAVIOURS)
    return {"PYTHONPATH": str(tmp_path), "SEEN": "before the first import"}


@contextmanager
def started(environment: dict[str, str], function: str = "open_echo") -> Iterator[Child]:
    one = Child(ChildTarget(f"behaviours:{function}", "options", environment))
    try:
        assert one.receive(START_S) is None
        yield one
    finally:
        one.kill()


def test_a_child_answers_with_its_options_and_environment(behaviours: dict[str, str]) -> None:
    with started(behaviours) as child:
        assert child.ask(42, START_S) == ("options", 42)
        assert child.ask("env", START_S) == "before the first import"


def test_a_child_that_hangs_is_killed_and_said_to_have_timed_out(behaviours: dict[str, str]) -> None:
    with started(behaviours) as child:
        with pytest.raises(ChildTimeoutError, match=r"0\.01 s"):
            child.ask("hang", 0.01)
        assert not child.alive


@pytest.mark.skipif(sys.platform != "linux", reason="watches processes by Linux's descriptors")
def test_what_a_child_started_is_killed_with_it(behaviours: dict[str, str]) -> None:
    with started(behaviours) as child:
        watched = os.pidfd_open(child.ask("ptxas", START_S))
        try:
            with pytest.raises(ChildTimeoutError):
                child.ask("hang", 0.01)
            assert _ended(watched)
        finally:
            os.close(watched)


@pytest.mark.parametrize(
    ("request_", "message", "number"),
    [
        ("segfault", r"died with signal 11 \(SIGSEGV\)", 11),
        ("abort", r"died with signal 6 \(SIGABRT\): LLVM ERROR: Cannot select: t12", 6),
        ("leave", "ended with exit code 7", None),
        ("garbage", "unreadable answer", None),
        ("no length", "unreadable answer", None),
        ("negative length", "unreadable answer", None),
    ],
)
def test_a_child_that_dies_says_how(
    behaviours: dict[str, str], request_: str, message: str, number: int | None
) -> None:
    with started(behaviours) as child:
        with pytest.raises(ChildDiedError, match=message) as caught:
            child.ask(request_, START_S)
        assert caught.value.signal_number == number
        assert not child.alive
        with pytest.raises(ChildDiedError):  # asking the dead is no crash
            child.ask(1, START_S)


def test_a_child_that_stops_in_the_middle_of_an_answer_holds_nobody_up(
    behaviours: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_STALL_S", 1)
    with started(behaviours) as stopped:
        with pytest.raises(ChildDiedError, match="stopped in the middle of an answer"):
            stopped.ask("half", START_S)
        assert not stopped.alive


def test_a_child_whose_handler_raises_lives_on(behaviours: dict[str, str]) -> None:
    with started(behaviours) as child:
        with pytest.raises(ChildRaisedError, match="no such tile") as caught:
            child.ask("raise", START_S)
        assert caught.value.type_name == "ValueError"
        assert "behaviours.py" in caught.value.traceback
        assert child.ask(1, START_S) == ("options", 1)


def test_a_child_that_cannot_start_names_the_missing_module(behaviours: dict[str, str]) -> None:
    with (
        pytest.raises(ChildRaisedError, match="there_is_no_such_module") as caught,
        started(behaviours, "open_broken"),
    ):
        pass
    assert caught.value.type_name == "ModuleNotFoundError"


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
@pytest.mark.parametrize("state", ["idle", "hanging"])
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path, behaviours: dict[str, str], state: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "from blockscale.measure.child import Child, ChildTarget\n"
        f"child = Child(ChildTarget('behaviours:open_echo', 'options', {behaviours!r}))\n"
        f"child.receive({START_S})\n"
        f"print(child.pid, flush=True)\n"
        f"child.send('hang') if {state == 'hanging'} else None\n"
        "child.receive(3600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        watched = os.pidfd_open(child_pid)
        try:
            parent.send_signal(signal.SIGKILL)
            assert _ended(watched)
        finally:
            os.close(watched)


def _ended(pidfd: int) -> bool:
    """A process's descriptor becomes readable when the process ends."""
    import select

    return bool(select.select([pidfd], [], [], START_S)[0])
