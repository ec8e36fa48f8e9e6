"""Entry point: picks the command, runs it, and turns whatever goes wrong into one message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockscale import __version__
from blockscale.cli.endings import end_with
from blockscale.cli.parsing import Parser
from blockscale.cli.process import ending_signals_interrupt, ignore_interrupts, open_streams
from blockscale.errors import InputError


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
    "check": Command("find what engines never read, cannot load or run wrongly", "blockscale.cli.check"),
    "compare": Command("measure config files beside what they replace", "blockscale.cli.compare"),
    "install": Command("put tuned files into an installed engine, or take them out again", "blockscale.cli.install"),
    "export": Command("write engine files or a recorded device from a store", "blockscale.cli.export"),
    "doctor": Command("say what this machine can tune and what is missing", "blockscale.cli.doctor"),
}

_EXIT_CODES = """exit codes:
  0    done, warnings possible
  1    check: a file has errors
       compare: a file is slower than what it replaces, or fails
       doctor: nothing can work here
  2    the input is wrong; nothing was changed
  3    incomplete, the same command continues (disk full, GPU lost, or a problem
       without a valid candidate)
  70   an error of blockscale itself
  130  interrupted (Ctrl-C, SIGTERM), the same command continues
  141  whoever read the output closed it"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (without the program's name; default: the process's own) and give its exit code.

    Everything a person should read about an error goes to stderr as one message; a traceback appears only for an error
    of blockscale itself, or with ``BLOCKSCALE_DEBUG`` set.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        try:
            with ending_signals_interrupt():
                code = _dispatch(arguments)
                sys.stdout.flush()
                return code
        finally:
            if argv is None:  # the process ends here
                ignore_interrupts()
    except (Exception, KeyboardInterrupt) as error:
        return end_with(error)


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
