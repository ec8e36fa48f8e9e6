"""What runs in a child process: ``python -m blockscale.measure.child_main MODULE:FUNCTION FD PARENT_PID``.

The function named is called with the options that arrive as the first message and returns a handler; after that each
message is one request, answered with ``("ok", value)`` or ``("raised", type name, message, traceback)``. A closed pipe
ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

Reply = tuple[Any, ...]

_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent goes, however it goes; a blocked GPU call cannot hold that up."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it went before the request was made
        os._exit(1)


def _answer(call: Callable[[], Any]) -> Reply:
    try:
        return ("ok", call())
    except Exception as error:
        return ("raised", type(error).__name__, str(error), traceback.format_exc())


def _serve(connection: Connection, target: str) -> None:
    options = connection.recv()
    handler: Callable[[Any], Any] | None = None

    def build() -> None:
        nonlocal handler
        module, _, function = target.partition(":")
        handler = getattr(importlib.import_module(module), function)(options)

    connection.send(_answer(build))
    while handler is not None:
        connection.send(_answer(partial(handler, connection.recv())))


def main(arguments: list[str]) -> None:
    """Serve requests until the pipe closes."""
    target, fd, parent_pid = arguments
    _die_with_parent(int(parent_pid))
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(Connection(int(fd)), target)
    # Interpreter shutdown would wait for GPU work and compiler threads that nobody needs any more.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
