"""A replaceable child process that answers requests over a pipe; tells timed out, died and raised apart.

Not `multiprocessing`: a child gets its environment (which GPU, which cache) before its first import, does not import
the parent's main module again, and leads its own process group, so that killing it takes ptxas along and Ctrl-C at the
terminal reaches only the parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import blockscale

_STDERR_TAIL_BYTES = 4096
_REAP_S = 10.0

# An answer is written in one go: a child that pauses so long in the middle of it is stopped or out of its mind.
_STALL_S = 10.0
_LARGEST_ANSWER_BYTES = 1 << 26

# The kernel ties a child's death signal to the *thread* that started it, so one thread that lasts starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blockscale-child-starter")


class ChildError(Exception):
    """A child gave no answer; which of the three kinds below says why."""


class ChildTimeoutError(ChildError):
    """It did not answer in time and was killed."""


class ChildDiedError(ChildError):
    """It ended, or sent what cannot be read, instead of answering. ``signal_number`` is None unless a signal did it."""

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class ChildRaisedError(ChildError):
    """Its handler raised; the child lives on. Keeps the exception's type by name, message and traceback."""

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.traceback = traceback


@dataclass(frozen=True)
class ChildTarget:
    """What a child runs: ``function`` as ``module:name`` is called with ``options`` and returns its request handler.

    ``environment`` is laid over the parent's before the child's first import.
    """

    function: str
    options: Any = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """One process. Not thread-safe but for ``strike``: one owner sends and receives."""

    def __init__(self, target: ChildTarget) -> None:
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 -- lives as long as the child
        self._last_words = ""
        ours, theirs = Pipe()
        self.connection: Connection = ours
        _limit_stalls(ours)
        try:
            self._process = _starter.submit(self._popen, target, theirs.fileno()).result()
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.send(target.options)

    def _popen(self, target: ChildTarget, fd: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **target.environment}
        root = str(Path(blockscale.__file__).parents[1])
        paths = [root, target.environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
        return subprocess.Popen(
            # -P: a folder named like a package where the user happens to stand must not be imported.
            [sys.executable, "-P", "-m", "blockscale.measure.child_main", target.function, str(fd), str(os.getpid())],
            env=environment,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,  # a library that prints must not reach the parent's standard output
            stderr=self._stderr,
            start_new_session=True,
        )

    def send(self, request: Any) -> None:
        """Send one request; a child that is gone shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self.connection.send(request)

    def receive(self, timeout_s: float) -> Any:
        """The answer to the oldest unanswered request; the first one answers the options (None: it is ready).

        Raises:
            ChildTimeoutError: none came within ``timeout_s``; the child has been killed.
            ChildDiedError: the child is gone.
            ChildRaisedError: the handler raised.
        """
        try:
            if not self.connection.poll(max(0.0, timeout_s)):
                self.kill()
                raise ChildTimeoutError(f"no answer within {timeout_s:g} s")
            answer = self.connection.recv_bytes(_LARGEST_ANSWER_BYTES)
        except BlockingIOError:
            self.kill()
            raise ChildDiedError("stopped in the middle of an answer") from None
        except (EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is None and not self.connection.closed:  # a length beyond all
                raise self._unreadable(str(error)) from error
            raise self._died() from None
        try:
            reply = pickle.loads(answer)
        except Exception as error:  # what is no pickle may raise anything
            raise self._unreadable(f"{type(error).__name__}: {error}") from error
        match reply:
            case ("ok", value):
                return value
            case ("raised", str(type_name), str(message), str(trace)):
                raise ChildRaisedError(type_name, message, trace)
        raise self._unreadable(str(reply))

    def ask(self, request: Any, timeout_s: float) -> Any:
        """Send one request and receive its answer; raises as `receive` does."""
        self.send(request)
        return self.receive(timeout_s)

    def _died(self) -> ChildDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        code = self._process.poll()
        self.kill()
        if code is not None and code < 0:
            text, number = f"died with signal {-code} ({_signal_name(-code)})", -code
        else:
            text, number = f"ended with exit code {code}", None
        said = self.said()
        return ChildDiedError(f"{text}: {said}" if said else text, number)

    def _unreadable(self, what: str) -> ChildDiedError:
        self.kill()
        return ChildDiedError(f"sent an unreadable answer ({what[:100]})")

    def said(self) -> str:
        """The last line that matters of what the child wrote to its standard error, e.g. LLVM's own last words."""
        if self._stderr.closed:
            return self._last_words
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _STDERR_TAIL_BYTES))
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line or "Error" in line]
        return (errors or lines or [""])[-1]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def strike(self) -> None:
        """Kill the process from any thread: its owner hears of it as of any death."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and what it started, now. Safe to call twice."""
        if self._process.poll() is None:
            self.strike()
            # A process stuck in the GPU driver cannot be reaped; it holds nothing that we still need.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)
        self.connection.close()
        self._last_words = self.said()
        self._stderr.close()


def _limit_stalls(connection: Connection) -> None:
    """Have the system end a read that gets nothing for ``_STALL_S``; waiting for an answer to begin is `poll`'s."""
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(_STALL_S), 0))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
