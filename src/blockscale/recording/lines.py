"""What is wrong with a recording, said by line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from blockscale.errors import InputError


class BadLineError(Exception):
    """A line breaks a rule of the format; the caller knows which line."""


# What reading a value of a wrong type or range may raise, besides a missing field.
BAD_VALUE = (InputError, BadLineError, TypeError, ValueError, OverflowError, AttributeError)


def bad(path: Path, number: int, rule: str) -> InputError:
    """The error for a broken rule on a line."""
    return InputError(f"{path} line {number}: {rule}: give an uncut recording made by `blockscale export recording`.")


@contextlib.contextmanager
def reading_line(path: Path, number: int) -> Iterator[None]:
    """Turn whatever is wrong with a line into one message that names it.

    Raises:
        InputError: something was wrong.
    """
    try:
        yield
    except json.JSONDecodeError as error:
        raise bad(path, number, f"the line is not one whole JSON object ({error.msg})") from None
    except KeyError as error:
        raise bad(path, number, f"the field {error} is missing") from None
    except RecursionError:
        raise bad(path, number, "the line is nested too deeply") from None
    except BAD_VALUE as error:
        raise bad(path, number, str(error).rstrip(".")) from None
