"""The process as a command finds it: streams that may be closed, signals that end a run early."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, TextIO

# Sent by batch systems and containers before they kill, and when a terminal is closed.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def open_streams() -> None:
    """Give the process all three standard streams, and let output never fail for a sign it cannot encode.

    A stream that is closed would give its number to the next file that is opened, and whatever is printed would go
    there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - held to the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard(stream: TextIO) -> None:
    """Send what a stream still holds nowhere: its reader or disk is gone, and flushing at exit would fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stream that tests put there has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def ending_signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does: what is finished is saved.

    Signals that the caller has ignored (``nohup``) or handles stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    ours = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def ignore_interrupts() -> None:
    """Let a second Ctrl-C not strike the interpreter while it shuts down, when all is said and saved."""
    for number in (signal.SIGINT, *_ENDING_SIGNALS):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)
