"""How a command ends early: streams that are gone, signals, a machine that is out of something."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from blockscale.cli.endings import end_with, one_line
from blockscale.cli.process import ending_signals_interrupt
from blockscale.errors import IncompleteRunError, InputError

BLOCKSCALE = [sys.executable, "-c", "import sys; from blockscale.cli.main import main; sys.exit(main())"]
RUN = ["tune", "--N", "2112", "--K", "7168", "--batch-sizes", "16", "--device", "recorded:h200", "--engine", "sglang"]


@pytest.fixture(autouse=True)
def no_debug(monkeypatch):
    monkeypatch.delenv("BLOCKSCALE_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("wrong"), 2, "error: wrong"),
        (IncompleteRunError("lost"), 3, "error: lost"),
        (KeyboardInterrupt(), 130, "the same command continues"),
        (MemoryError(), 3, "out of memory; what was measured is saved"),
        (OSError(errno.ENOSPC, "No space left on device"), 3, "the output could not be written (No space left"),
        (OSError(errno.EMFILE, "Too many open files", "a"), 3, "a could not be written (Too many open files)"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaa"), 2, "aaa cannot be accessed (file name too long)"),
    ],
)
def test_what_is_no_bug_of_ours_is_one_line_with_its_exit_code(error, code, said, capsys):
    assert end_with(error) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "Bad file descriptor"), ValueError("x"), RecursionError()])
def test_everything_else_is_called_a_bug(error, capsys):
    assert end_with(error) == 70
    assert "This is a bug" in capsys.readouterr().err


def test_a_message_is_one_line_whatever_it_quotes():
    assert one_line("a\nb\x1b[31m\u2028\ud800 µ") == r"a\nb\x1b[31m\u2028\ud800 µ"
    long = one_line("start " + "x" * 100_000 + " end")
    assert len(long) < 5000
    assert (long[:5], long[-3:]) == ("start", "end")


def shell(script, folder, *arguments):
    """``script`` runs the command as ``"$@"``."""
    command = ["bash", "-c", script, "bash", *BLOCKSCALE, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_closed_streams_neither_stop_a_run_nor_get_into_its_files(closed, more, tmp_path):
    assert shell(f'"$@" {closed}', tmp_path, *RUN, *more).returncode == 0
    # Only a store that nothing was printed into opens again, and it answers for every trial.
    again = shell('"$@"', tmp_path, *RUN, "--json")
    assert '"trials_measured": 0' in again.stdout, again.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_to_a_full_disk_ends_the_run_resumably(more, tmp_path):
    done = shell('"$@" >/dev/full', tmp_path, *RUN, *more)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "the output could not be written (No space left on device)" in line
    assert shell('"$@"', tmp_path, *RUN).returncode == 0


def test_a_refusal_that_cannot_be_told_keeps_its_exit_code(tmp_path):
    assert shell('"$@" 2>/dev/full', tmp_path, "tune", "--N", "0").returncode == 2


@pytest.mark.parametrize("settings", ["LC_ALL=C PYTHONIOENCODING=ascii", "LC_ALL=POSIX PYTHONUTF8=0", "TERM=dumb"])
def test_signs_that_a_terminal_cannot_show_stop_nothing(settings, tmp_path):
    done = shell(f'{settings} "$@"', tmp_path, *RUN, "--save-path", "µ×")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "µ×").glob("N=*.json"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_interrupt_it(number):
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with pytest.raises(KeyboardInterrupt, match=number.name), ending_signals_interrupt():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_signals_that_the_caller_ignores_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals_interrupt():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone():
    seen = []

    def inside():
        with ending_signals_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_second_interrupt_while_the_interpreter_shuts_down_says_nothing(tmp_path):
    code = (
        "import atexit, os, signal, sys; from blockscale.cli.main import main; sys.argv[1:] = ['--version'];"
        "atexit.register(lambda: [os.kill(os.getpid(), n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]);"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
