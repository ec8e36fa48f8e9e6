"""Argument parsing: one message for a wrong argument, raised as ``InputError`` like every other mistake."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from blockscale.errors import InputError
from blockscale.problem import OutDtype

DEFAULT_STORE = "blockscale.db"
_MOST_DIGITS = 18  # fits 64 bits
_HELP_WIDTH = 78  # as argparse fills the rest on a terminal of 80 columns


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing usage and exiting, and takes no abbreviated options."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=textwrap.fill(description, _HELP_WIDTH),
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, with options and positional arguments in any order.

        Raises:
            InputError: the arguments do not fit; the message names ``--help``.
        """
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise InputError(f"{message} (`{self.prog} --help` lists what there is).")


def add_tp_size(parser: argparse._ActionsContainer) -> None:
    """The option ``--tp-size``."""
    parser.add_argument(
        "--tp-size",
        "-tp",
        type=whole_number("--tp-size"),
        default=8,
        metavar="T",
        help="tensor-parallel size the model is served with (default 8)",
    )


def add_store(parser: argparse._ActionsContainer, what: str) -> None:
    """The option ``--store``; ``what`` the command does with it."""
    help_text = f"{what} (default ./{DEFAULT_STORE})"
    parser.add_argument("--store", type=Path, default=Path(DEFAULT_STORE), metavar="FILE", help=help_text)


def whole_number(option: str, least: int = 1) -> Callable[[str], int]:
    """A converter for ``option``'s values: whole numbers of at least ``least``."""

    def convert(text: str) -> int:
        # int() alone also takes "1_000", surrounding blanks and the digits of every script.
        if not re.fullmatch(r"-?[0-9]+", text):
            hint = "; write a MODEL before the options" if text[:1].isalpha() and option == "--batch-sizes" else ""
            raise InputError(
                f"{option} {_quoted(text)}: not a whole number; give whole numbers of at least {least}{hint}."
            )
        if len(text) > _MOST_DIGITS:
            raise InputError(f"{option} {_quoted(text)}: too large; give a number of at most {_MOST_DIGITS} digits.")
        value = int(text)
        if value < least:
            raise InputError(f"{option} {value}: too small; give a whole number of at least {least}.")
        return value

    return convert


def seconds(option: str) -> Callable[[str], float]:
    """A converter for ``option``'s value: a positive number of seconds."""

    def convert(text: str) -> float:
        value = float(text) if re.fullmatch(r"[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?|[0-9]+\.", text) else -1.0
        if not 0 < value < float("inf"):
            raise InputError(f"{option} {_quoted(text)}: not a positive number; give seconds, e.g. {option} 600.")
        return value

    return convert


def _quoted(text: str) -> str:
    """An argument as it was given, short enough for a message; quotes where it would not be seen."""
    if not text or text != text.strip():
        return repr(text)
    return text if len(text) <= 40 else f"{text[:37]}…"


def out_dtype(text: str) -> OutDtype:
    """A converter for ``--out-dtype``; ``half`` is another name of float16."""
    try:
        return OutDtype.FLOAT16 if text == "half" else OutDtype(text)
    except ValueError:
        names = ", ".join([*OutDtype, "half"])
        raise InputError(f"--out-dtype {text}: no such output type; choose from {names}.") from None
