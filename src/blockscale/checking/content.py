"""The bytes of a config file taken apart, so that members can be moved or left out with every other byte as it was."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from blockscale.engines.files import MalformedJsonError, parse_json

_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"
_LONGEST_QUOTE = 40


class NotAnObjectError(MalformedJsonError):
    """JSON whose top level is no object."""


@dataclass(frozen=True, slots=True)
class Content:
    """A readable file: its text without byte order mark, and its members in file order."""

    text: str
    members: dict[str, Any]
    has_bom: bool
    has_returns: bool

    def rewritten(self, keys: Sequence[str]) -> str:
        """The text with the members of these keys alone, in this order, and with line feeds as line ends.

        Each member stays as it is written; so does what stands before the first, between two and after the last.
        """
        text = self.text
        if list(keys) != list(self.members):
            text = _with_members(text, keys)
        return text.replace("\r\n", "\n").replace("\r", "\n")


def read_content(data: bytes) -> Content:
    """Take the bytes of a file apart.

    Raises:
        NotAnObjectError: the top level is another JSON value.
        MalformedJsonError: an engine or we cannot read it, as ``parse_json`` says.
    """
    has_bom = data.startswith(codecs.BOM_UTF8)
    body = data.removeprefix(codecs.BOM_UTF8)
    value = parse_json(body)
    if not isinstance(value, dict):
        raise NotAnObjectError(f"its top level is {kind_of_json(value)}")
    return Content(body.decode(), value, has_bom, b"\r" in body)


def kind_of_json(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def shown(value: object) -> str:
    """A JSON value as a message quotes it."""
    return shortened(json.dumps(value))


def shortened(text: str) -> str:
    """A text as a message quotes it, cut where it is long."""
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 3]}…"


def _with_members(text: str, keys: Collection[str]) -> str:
    spans = _spans(text)
    if not keys:
        return "{}" + text[text.rindex("}") + 1 :]
    places = list(spans.values())
    gap = next((text[a[1] : b[0]] for a, b in pairwise(places)), ", ")
    chosen = (text[spans[key][0] : spans[key][1]] for key in keys)
    return text[: places[0][0]] + gap.join(chosen) + text[places[-1][1] :]


def _spans(text: str) -> dict[str, tuple[int, int]]:
    """Where each member of the top-level object begins and ends; the text is known to be such an object."""
    spans = {}
    at = _after(text, 0, "{")
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        _, end = _DECODER.raw_decode(text, _after(text, end, ":"))
        spans[key] = (at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _after(text, at, ",")
    return spans


def _after(text: str, at: int, sign: str) -> int:
    """Where the next value begins behind ``sign``, the next that is no blank."""
    return _skip(text, _skip(text, at) + len(sign))


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at
