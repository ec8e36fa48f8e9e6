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
_NAME = re.compile(r"[A-Za-z.~/]|[^-].*/")  # a model's, which no number looks like
DEFAULT_TP_SIZE = 8
MODEL_HELP = "folder with a config.json, a .json file, a hub id (needs the extra `hub`), or the preset deepseek-v3"


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
        return self.parse_intermixed_args(self._names_before_numbers(arguments))

    def _names_before_numbers(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, each name that follows the numbers of an option (``--tp-size 4 8 MODEL``) put in front.

        Such an option would take it as one more of its numbers.
        """
        lists = {option for action in self._actions if action.nargs == "+" for option in action.option_strings}
        names: list[str] = []
        others: list[str] = []
        taken: int | None = None  # values of the list that is open
        for argument in arguments:
            if taken is not None and _NAME.match(argument):
                if taken:
                    names.append(argument)
                    continue
                taken = None
            elif argument.startswith("-"):
                taken = 0 if argument in lists else None
            elif taken is not None:
                taken += 1
            others.append(argument)
        return [*names, *others]

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise InputError(f"{message} (`{self.prog} --help` lists what there is).")


def add_model_options(parser: argparse._ActionsContainer) -> None:
    """The options that say how a MODEL is served and where it is read, and ``--from-log``, which replaces it."""
    parser.add_argument(
        "--tp-size",
        "-tp",
        type=whole_number("--tp-size"),
        nargs="+",
        action="extend",
        metavar="T",
        help=f"tensor-parallel sizes the model is served with (default {DEFAULT_TP_SIZE})",
    )
    parser.add_argument(
        "--ep-size",
        type=whole_number("--ep-size"),
        default=1,
        metavar="P",
        help="expert-parallel size it is served with (default 1)",
    )
    parser.add_argument(
        "--dp-attention",
        action="store_true",
        help="each GPU holds all attention heads (SGLang's --enable-dp-attention)",
    )
    parser.add_argument(
        "--shared-experts-fusion",
        action="store_true",
        help="SGLang folds the shared experts into its MoE kernel, as it does where it can unless it is started with "
        "--disable-shared-experts-fusion",
    )
    parser.add_argument(
        "--quantization",
        choices=["fp8-block"],
        help="list what quantising while loading gives, where the model's config declares no blocks",
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit of a hub id (default main)")
    parser.add_argument("--token", metavar="T", help="access token of the hub (default: the one you logged in with)")
    parser.add_argument(
        "--from-log",
        type=Path,
        metavar="FILE",
        help="take the shapes from a serving log, or from a list of them, instead of a MODEL",
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
            raise InputError(f"{option} {_quoted(text)}: not a whole number; give whole numbers of at least {least}.")
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
