"""A table as plain data, and its drawing as fixed-width text without colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and whether its cells are figures, which align right."""

    title: str
    figures: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text, one tuple a row, as many as there are columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def render_table(table: Table) -> str:
    """Lines of equal columns, two spaces between them, a rule under the titles; no trailing spaces."""
    titles = [c.title for c in table.columns]
    widths = [max(display_width(row[i]) for row in (titles, *table.rows)) for i in range(len(titles))]
    lines = [titles, ["─" * width for width in widths], *table.rows]
    return "\n".join(_line(cells, widths, table.columns) for cells in lines)


def display_width(text: str) -> int:
    """Terminal cells that ``text`` takes: combining marks none, wide East Asian characters two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        space = " " * (width - display_width(cell))
        padded.append(space + cell if column.figures else cell + space)
    return "  ".join(padded).rstrip()
