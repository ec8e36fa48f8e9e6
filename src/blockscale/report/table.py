"""A table as plain data, and its drawing as fixed-width text without colour."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, whether its cells are figures, which align right, and whether it may be left out."""

    title: str
    figures: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text, one tuple a row, as many as there are columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def render_table(table: Table, width: int | None = None) -> str:
    """Lines of equal columns, two spaces between them, a rule under the titles; no trailing spaces.

    Optional columns are left out, the last first, while the table is wider than ``width`` terminal cells.
    """
    titles = [c.title for c in table.columns]
    widths = [max(display_width(row[i]) for row in (titles, *table.rows)) for i in range(len(titles))]
    shown = _fitting(table.columns, widths, width)
    lines = [titles, ["─" * w for w in widths], *table.rows]
    return "\n".join(
        _line([cells[i] for i in shown], [widths[i] for i in shown], [table.columns[i] for i in shown])
        for cells in lines
    )


def wrap(text: str, width: int | None, indent: str = "") -> str:
    """``text`` on lines of at most ``width`` characters, those after the first behind ``indent``.

    Only breaks at blanks, so that an option or a path stays whole; no ``width`` leaves the text as it is.
    """
    if width is None:
        return text
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def display_width(text: str) -> int:
    """Terminal cells that ``text`` takes: combining marks none, wide East Asian characters two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fitting(columns: Sequence[Column], widths: Sequence[int], limit: int | None) -> list[int]:
    """Indices of the columns that are shown in ``limit`` terminal cells."""
    shown = list(range(len(columns)))
    for i in reversed(range(len(columns))):
        needed = sum(widths[j] for j in shown) + 2 * (len(shown) - 1)
        if limit is None or needed <= limit:
            break
        if columns[i].optional:
            shown.remove(i)
    return shown


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        space = " " * (width - display_width(cell))
        padded.append(space + cell if column.figures else cell + space)
    return "  ".join(padded).rstrip()
