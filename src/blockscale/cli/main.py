"""Entry point: picks the command, runs it, and turns whatever goes wrong into one message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockscale import __version__
from blockscale.cli.parsing import Parser
from blockscale.errors import BlockscaleError, InputError

INTERRUPTED = 130  # 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_INTERNAL_ERROR = 70  # EX_SOFTWARE


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: its one-line summary and the module that holds ``build_parser`` and ``run``."""

    summary: str
    module: str

    def load(self) -> tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]:
        """Import the module, only now, so that ``--help`` and the other commands start fast."""
        module = importlib.import_module(self.module)
        return module.build_parser, module.run


COMMANDS = {
    "tune": Command("search the fastest config of every shape and write the engines' files", "blockscale.cli.tune"),
    "shapes": Command("list the weight shapes of a model at a tensor-parallel size", "blockscale.cli.shapes"),
    "export": Command("write engine files or a recorded device from a store", "blockscale.cli.export"),
    "doctor": Command("say what this machine can tune and what is missing", "blockscale.cli.doctor"),
}

_EXIT_CODES = """exit codes:
  0    done, warnings possible
  1    doctor: nothing can work here
  2    the input is wrong; nothing was changed
  3    incomplete, the same command continues (disk full, GPU lost, or a problem
       without a valid candidate)
  70   an error of blockscale itself
  130  interrupted, the same command continues
  141  whoever read the output closed it"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (without the program's name; default: the process's own) and give its exit code.

    Everything a person should read about an error goes to stderr as one message; a traceback appears only for an error
    of blockscale itself, or with ``BLOCKSCALE_DEBUG`` set.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without × and µ gets a question mark, not a crash
            stream.reconfigure(errors="replace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except BlockscaleError as error:
        _log_traceback()
        print(f"blockscale: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _log_traceback()
        print("blockscale: interrupted; what is finished is saved, the same command continues.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; the interpreter must not fail again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except PermissionError as error:
        _log_traceback()
        print(
            f"blockscale: error: {error.filename or error} cannot be accessed (permission denied): give a path that "
            "this user may read and write.",
            file=sys.stderr,
        )
        return InputError.exit_code
    except Exception as error:
        import traceback

        traceback.print_exc()
        print(
            f"blockscale: internal error: {type(error).__name__}: {error}. This is a bug in blockscale; please report "
            "it with the lines above. What was measured is saved.",
            file=sys.stderr,
        )
        return _INTERNAL_ERROR


def build_parser() -> argparse.ArgumentParser:
    """The parser of the program itself; each command has its own."""
    names = "\n".join(f"  {name:<8} {command.summary}" for name, command in COMMANDS.items())
    parser = Parser(
        "blockscale",
        "Tune block-scaled FP8 and INT8 GEMM kernels: a model in, verified SGLang and vLLM config files out.",
        f"commands:\n{names}\n\n`blockscale COMMAND --help` explains one.\n\n{_EXIT_CODES}",
    )
    parser.usage = "blockscale COMMAND [OPTION …]"
    parser.add_argument("--version", action="version", version=f"blockscale {__version__}")
    return parser


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        _set_up_logging()
        build, run = COMMANDS[arguments[0]].load()
        try:
            parsed = build().parse(arguments[1:])
        except SystemExit:  # argparse has printed --help
            return 0
        return run(parsed)
    parser = build_parser()
    if arguments and not arguments[0].startswith("-"):
        raise InputError(f"{arguments[0]}: no such command; choose from {', '.join(COMMANDS)}.")
    try:
        parser.parse_args(arguments)
    except SystemExit:  # argparse has printed --help or --version
        return 0
    parser.print_help()
    return InputError.exit_code


def _set_up_logging() -> None:
    import logging

    debug = bool(os.environ.get("BLOCKSCALE_DEBUG"))
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.ERROR,
        format="%(asctime)s %(name)s: %(message)s" if debug else "blockscale: %(message)s",
        stream=sys.stderr,
    )


def _log_traceback() -> None:
    if os.environ.get("BLOCKSCALE_DEBUG"):
        import traceback

        traceback.print_exc()
