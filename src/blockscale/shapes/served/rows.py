"""Plain lists of shapes: text, CSV with a header, JSON. One reader a kind of row; the first row tells the kind."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from blockscale.problem import LARGEST_OFFSET, QuantFormat, QuantScheme, WeightShape

EXAMPLES = (
    '"16 2112 7168 30" (M N K count), "2112 7168" (N K), "M=16, N=2112, K=7168", CSV with a header like M,N,K,count, '
    'or JSON like {"M": 16, "N": 2112, "K": 7168, "count": 30}'
)

# A weight, its M (None where none is named) and how often it was launched.
Row = tuple[WeightShape, int | None, int]
RowReader = Callable[[str], Iterator[Row]]

# What people and programs call the columns, lower case.
_COLUMNS = {
    **dict.fromkeys(("m", "num_tokens", "tokens", "batch", "batch_size", "bs"), "M"),
    **dict.fromkeys(("n", "out_features", "output_size"), "N"),
    **dict.fromkeys(("k", "in_features", "input_size"), "K"),
    **dict.fromkeys(("count", "calls", "launches", "freq", "frequency", "times"), "count"),
}
_LARGEST_COUNT = 10**18
_NUMBER = re.compile(r"(\d{1,18})(?:\.0{1,18})?", re.ASCII)
_MEANT_AS_NUMBER = re.compile(r"[-+]?[0-9.]+")  # so that a bad first row is refused as a row
_SEPARATOR = re.compile(r"\s*[,;×xX*]\s*|\s+")
_PAIR = re.compile(r"([A-Za-z_]{1,30})\s*[=:]\s*([^\s,;=:]+)")
_BETWEEN_PAIRS = re.compile(r"[\s,;]*")


class BadRow(ValueError):
    """A row that is none; the text says why."""


def row_reader(first: str) -> RowReader | None:
    """The reader for rows of the kind of ``first``, None where that is no row of a list and no header.

    Readers take lines as `meaningful` leaves them, and none that it leaves empty.
    """
    text = meaningful(first)
    if text.lstrip().startswith(("{", "[")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return _json_line if _is_row(value) else None
    if _pairs(text) is not None:
        return _pair_row
    if header := _header(text):
        return header
    cells = _SEPARATOR.split(text.strip())
    return _number_row if len(cells) > 1 and all(_MEANT_AS_NUMBER.fullmatch(cell) for cell in cells) else None


def meaningful(line: str) -> str:
    """The line without what follows a # and blanks around it; tabs stay, since they may part empty columns."""
    text = line.split("#", 1)[0]
    return text.strip(" \r\n") if text.strip() else ""


def _number_row(line: str) -> Iterator[Row]:
    cells = _SEPARATOR.split(line.strip())
    names = {2: ("N", "K"), 3: ("M", "N", "K"), 4: ("M", "N", "K", "count")}.get(len(cells))
    if names is None:
        raise BadRow(f"{len(cells)} fields; a row has two (N K), three (M N K) or four (M N K count)")
    yield _row(dict(zip(names, cells, strict=True)))


def _pair_row(line: str) -> Iterator[Row]:
    pairs = _pairs(line)
    if pairs is None:
        raise BadRow("not a row of NAME=NUMBER like the first one")
    yield _row(pairs)


def _pairs(text: str) -> dict[str, str] | None:
    """The columns of a row like ``M=16, N=2112``; None where the text is no such row."""
    if _BETWEEN_PAIRS.fullmatch(_PAIR.sub("", text)) is None:
        return None
    pairs = [(_column(name), number) for name, number in _PAIR.findall(text)]
    return dict(pairs) if {"N", "K"} <= {name for name, _ in pairs} else None


def _column(name: str) -> str:
    return _COLUMNS.get(name.strip().lower(), name)


def _header(text: str) -> RowReader | None:
    """A reader for the rows below the header ``text``, None where it is no header."""
    delimiter = next((sign for sign in ",;\t" if sign in text), None)
    names = [_column(cell) for cell in _cells(text, delimiter)]
    if "N" not in names or "K" not in names:
        return None

    def read(line: str) -> Iterator[Row]:
        cells = _cells(line, delimiter)
        if [_column(cell) for cell in cells] == names:
            _require_once(names)
            return  # the header, and its repetition where files were put together
        if len(cells) != len(names):
            raise BadRow(f"{len(cells)} fields, but the header has {len(names)}")
        yield _row(dict(zip(names, cells, strict=True)))

    return read


def _cells(text: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return text.split()
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:  # a field of more than 128 KiB
        return []


def _require_once(columns: Iterable[str]) -> None:
    given = list(columns)
    for name in ("M", "N", "K", "count"):
        if given.count(name) > 1:
            raise BadRow(f"{name} has several columns; leave one")


def _json_line(line: str) -> Iterator[Row]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"no JSON ({error})") from None
    yield from _json_row(value)


def document_rows(document: object) -> Iterator[Row]:
    """The rows of a JSON list, or of the list ``shapes`` of an object, as `blockscale shapes --json` prints it.

    Raises:
        BadRow: an entry is no row; the text says which and why.
    """
    entries = document.get("shapes") if isinstance(document, Mapping) else document
    if not isinstance(entries, list):
        raise BadRow("no list of rows")
    for number, entry in enumerate(entries, start=1):
        try:
            yield from _json_row(entry)
        except BadRow as error:
            raise BadRow(f"entry {number}: {error}") from None


def document_quant(document: object) -> QuantScheme | None:
    """The one quantisation of what `blockscale shapes --json` printed, None where it names none or several."""
    listings = document.get("listings") if isinstance(document, Mapping) else None
    named = {
        json.dumps(each.get("quantization"), sort_keys=True)
        for each in (listings if isinstance(listings, list) else [])
        if isinstance(each, Mapping)
    }
    fields = json.loads(named.pop()) if len(named) == 1 else None
    try:
        return QuantScheme(QuantFormat(fields["format"]), fields["block_n"], fields["block_k"]) if fields else None
    except (KeyError, TypeError, ValueError):
        return None


def is_document(value: object) -> bool:
    """Whether a JSON value is a list of rows, or an object that holds one, and no single row."""
    if isinstance(value, Mapping):
        return isinstance(value.get("shapes"), list)
    return isinstance(value, list) and bool(value) and not _is_row(value)


def _is_row(value: object) -> bool:
    """Whether a JSON value has the form of a row, good or bad."""
    if isinstance(value, Mapping):
        return {"N", "K"} <= {_column(str(name)) for name, each in value.items() if each is not None}
    return isinstance(value, list) and 1 < len(value) <= 4 and not any(isinstance(v, list | Mapping) for v in value)


def _json_row(value: object) -> Iterator[Row]:
    if isinstance(value, list):
        yield from _number_row(" ".join(json.dumps(each).strip('"') for each in value))
        return
    if not isinstance(value, Mapping) or not _is_row(value):
        raise BadRow(f"{_short(value)} has no N and K")
    named = [(_column(str(name)), each) for name, each in value.items() if each is not None]
    _require_once(name for name, _ in named)
    fields = dict(named)
    by_m = fields.get("count")
    if not isinstance(by_m, Mapping):
        yield _row(fields)
        return
    yield _row({name: fields[name] for name in ("N", "K")})
    for m, count in by_m.items():
        yield _row({"N": fields["N"], "K": fields["K"], "M": m, "count": count})


def _row(fields: Mapping[str, Any]) -> Row:
    weight = WeightShape(_number("N", fields["N"]), _number("K", fields["K"]))
    if fields.get("M") in (None, ""):
        return weight, None, 0  # a count without an M says nothing of batch sizes
    count = fields.get("count")
    counted = 1 if count in (None, "") else _number("count", count, _LARGEST_COUNT)
    return weight, _number("M", fields["M"]), counted


def _number(name: str, value: object, largest: int = LARGEST_OFFSET) -> int:
    found = _NUMBER.fullmatch(value if isinstance(value, str) else _short(value))
    number = int(found[1]) if found else 0
    if not 1 <= number <= largest:
        raise BadRow(f"{name} is {_short(value)}, no whole number from 1 to {largest:,}")
    return number


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
