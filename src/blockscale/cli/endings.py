"""How a command ends early: one message for the person, one exit code for the caller."""

from __future__ import annotations

import os
import sys
import traceback

from blockscale.cli.process import discard
from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.paths import machine_gave_out, reason_of

INTERRUPTED = 130  # 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_INTERNAL_ERROR = 70  # EX_SOFTWARE
_LONGEST_MESSAGE = 4000  # characters; what a file holds may be quoted in it
_WAY_OUT = 600  # characters at the end that are never cut: they say what to do


def end_with(error: Exception | KeyboardInterrupt) -> int:
    """Say why a command ended and give its exit code.

    A traceback appears only for an error of blockscale itself, or with ``BLOCKSCALE_DEBUG`` set.
    """
    if isinstance(error, BrokenPipeError):
        discard(sys.stdout)
        return _BROKEN_PIPE
    code, message = _ending(error)
    if code == _INTERNAL_ERROR or os.environ.get("BLOCKSCALE_DEBUG"):
        _say("".join(traceback.format_exception(error)).rstrip("\n"))
    _say(f"blockscale: {one_line(message)}")
    return code


def one_line(message: str) -> str:
    """A message that quotes a path or a file stays one line, without control characters and of bounded length."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    if len(line) <= _LONGEST_MESSAGE:
        return line
    return f"{line[: _LONGEST_MESSAGE - _WAY_OUT]} … {line[-_WAY_OUT:]}"


def _ending(error: Exception | KeyboardInterrupt) -> tuple[int, str]:
    match error:
        case BlockscaleError():
            return error.exit_code, f"error: {error}"
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted; what is finished is saved, the same command continues."
        case MemoryError():
            return IncompleteRunError.exit_code, (
                "error: out of memory; what was measured is saved. Free some, then start the same command again."
            )
        case OSError() if machine_gave_out(error):
            if error.filename is None:
                discard(sys.stdout)
            return IncompleteRunError.exit_code, (
                f"error: {error.filename or 'the output'} could not be written ({reason_of(error)}); what was measured "
                "is saved. Make room, then start the same command again."
            )
        case OSError() if error.filename is not None:
            return InputError.exit_code, (
                f"error: {error.filename} cannot be accessed ({reason_of(error).lower()}): give a path that this user "
                "may read and write."
            )
        case _:
            return _INTERNAL_ERROR, (
                f"internal error: {type(error).__name__}: {error}. This is a bug in blockscale; please report it with "
                "the lines above. What was measured is saved."
            )


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody is left to tell; the exit code remains
        discard(sys.stderr)
