"""A file with what a server launched: opened, told log from list, and read line by line."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from blockscale.errors import InputError
from blockscale.paths import PathKind, at_home, kind_at, reason_of
from blockscale.shapes.served.launches import Launches, ServedShapes
from blockscale.shapes.served.log import LOOKED_FOR, LogLines
from blockscale.shapes.served.rows import (
    EXAMPLES,
    BadRow,
    RowReader,
    document_quant,
    document_rows,
    is_document,
    meaningful,
    row_reader,
)

_WAY_OUT = "give a serving log or a list of shapes, plain or gzip-compressed"
_GZIP_MAGIC = b"\x1f\x8b"
_BEGINS_DOCUMENT = re.compile(r"\s*(\[\s*([\[{]|$)|\{\s*(\"|$))")
_LONGEST_LINE = 1 << 20  # characters; what is longer comes in pieces, so that memory is bounded
_LARGEST_DOCUMENT = 1 << 26  # characters of a JSON list, which is read whole


def read_served(path: Path) -> ServedShapes:
    """What the serving log or list at ``path`` says was launched; which of the two it is, its first row tells.

    Logs of SGLang and vLLM are searched for the lines that `blockscale.shapes.served.log` names. A list has a row a
    line (N K, M N K, M N K count, NAME=NUMBER, CSV below a header, JSON objects or lists), or is one JSON list; a #
    starts a comment. Launches of a list add up over its rows. Bytes that are no UTF-8 are passed over. Memory grows
    with the distinct shapes alone, but for one JSON list, which has at most 64 Mi characters.

    Raises:
        InputError: there is no such file or it cannot be read, it names no shape, a row of a list is none, or a log
            has shapes of several quantisations.
    """
    path = at_home(path, _WAY_OUT)
    kind = kind_at(path, _WAY_OUT)
    if kind is not PathKind.FILE:
        what = f"is a {kind}" if kind else "does not exist"
        raise InputError(f"{path} {what}: {_WAY_OUT}.")
    with _reading(path), _opened(path) as file:
        lines = _lines(file)
        ahead = list(_up_to_first_row(lines))
        first = ahead[-1] if ahead else ""
        if reader := row_reader(first):
            return _of_rows(path, chain(ahead, lines), reader)
    document, trouble = _document(path, first)
    if document is not None:
        return _of_document(path, document)
    with _reading(path), _opened(path) as file:
        return _of_log(path, _lines(file), trouble)


def _up_to_first_row(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if meaningful(line):
            return


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what reading the file may raise into the message for the person."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}): {_WAY_OUT}.") from error


def _opened(path: Path) -> TextIO:
    with path.open("rb") as raw:
        packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


def _lines(file: TextIO) -> Iterator[str]:
    return iter(lambda: file.readline(_LONGEST_LINE), "")


def _of_rows(path: Path, lines: Iterable[str], read: RowReader) -> ServedShapes:
    launches = Launches()
    for number, line in enumerate(lines, start=1):
        text = meaningful(line)
        if not text:
            continue
        try:
            for weight, m, count in read(text):
                launches.add(weight, m, count)
        except BadRow as error:
            raise InputError(f"{path}, line {number}: {error}. Rows are {EXAMPLES}.") from None
    if not launches.by_weight:
        raise InputError(f"{path} has a header and no rows. Rows are {EXAMPLES}.")
    return ServedShapes(launches.by_weight, None, ())


def _document(path: Path, first: str) -> tuple[object | None, str]:
    """The JSON value of a file of rows that begins with ``first``; None and why it is no JSON, if it looked so."""
    if not _BEGINS_DOCUMENT.match(first):
        return None, ""
    with contextlib.suppress(ValueError, RecursionError):
        if not is_document(json.loads(first)):
            return None, ""  # a log of JSON objects
    with _reading(path), _opened(path) as file:
        text = file.read(_LARGEST_DOCUMENT + 1)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f" It is no JSON list either ({error})."
    return (value, "") if is_document(value) else (None, "")


def _of_document(path: Path, document: object) -> ServedShapes:
    launches = Launches()
    try:
        for weight, m, count in document_rows(document):
            launches.add(weight, m, count)
    except BadRow as error:
        raise InputError(f"{path}, {error}. Rows are {EXAMPLES}.") from None
    if not launches.by_weight:
        raise InputError(f"{path} lists no shapes. Rows are {EXAMPLES}.")
    return ServedShapes(launches.by_weight, document_quant(document), ())


def _of_log(path: Path, lines: Iterable[str], trouble: str) -> ServedShapes:
    found = LogLines()
    for line in lines:
        found.read(line)
    if not found.launches.by_weight:
        seen = " ".join(("", *found.notes()))
        raise InputError(
            f"{path} names no shape. Looked for {LOOKED_FOR}; as a list, rows are {EXAMPLES}.{trouble}{seen}"
        )
    if len(found.weights_by_quant) > 1:
        listed = ", ".join(
            f"{q.format} in blocks of {q.block_n}×{q.block_k} ({', '.join(map(str, sorted(weights)))})"
            for q, weights in sorted(found.weights_by_quant.items())
        )
        raise InputError(f"{path} has shapes of several quantisations, {listed}: give the lines of one at a time.")
    (quant,) = found.weights_by_quant
    return ServedShapes(found.launches.by_weight, quant, tuple(found.engines), found.notes(), found.passes)
