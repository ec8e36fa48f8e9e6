"""The run as a person or a program watches it: a live view, plain lines, or JSON lines."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from blockscale.report.closing import closing_text
from blockscale.report.lines import json_line, plain_line
from blockscale.report.progress import Progress, progress_lines
from blockscale.report.results import count
from blockscale.report.table import render_table, wrap
from blockscale.report.weights import DevicePlan, Use, weights_table
from blockscale.tuning.events import (
    Event,
    FileWritten,
    Note,
    ProblemResult,
    RunStarted,
    RunSummary,
    TimeSpent,
)

if TYPE_CHECKING:  # doctor needs no numpy
    from blockscale.tuning.groups import Group

Watcher = Callable[[Event | DevicePlan], None]


@contextmanager
def watch(groups: Sequence[Group], plans: Sequence[DevicePlan] = (), *, as_json: bool) -> Iterator[Watcher]:
    """An observer that shows the run of these groups on stdout; the closing table follows when it ended by itself.

    ``plans``, one a group or none, say what each file serves; they are shown when the observer is told of them.
    """
    serves = _served_by_file(groups, plans)
    if as_json:
        yield _while_read(lambda event: _print_json(event, serves))
        return
    width = terminal_width()
    problems = [p for g in groups for e in g.engines for p in g.request.problems(e.name)]
    progress = Progress(problems, 1, time.monotonic)
    summaries: list[RunSummary] = []
    with _screen(progress) as say:

        def observe(event: Event | DevicePlan) -> None:
            if isinstance(event, DevicePlan):
                if event.says_more_than_sizes:
                    say(render_table(weights_table(event)) + "\n")
                return
            progress.update(event)
            if isinstance(event, RunSummary):
                summaries.append(event)
            elif (line := _line(event, progress, width)) is not None:
                say(line)

        yield _while_read(observe)
    for summary in summaries:
        text = closing_text(summary, progress.approximate, _backend_notes(groups), width, serves)
        print("\n" + text, flush=True)


def _served_by_file(groups: Sequence[Group], plans: Sequence[DevicePlan]) -> dict[Path, list[Use]]:
    """The layers that will read each file."""
    return {
        group.request.target(engine, planned.weight, group.device.spec).path: uses
        for group, plan in zip(groups, plans, strict=False)
        for engine in group.engines
        for planned in plan.weights
        if (uses := [use for use in planned.uses if use.engine == engine.name])
    }


def _backend_notes(groups: Sequence[Group]) -> dict[str, list[str]]:
    """What each engine's files need on the groups' devices, each sentence once."""
    notes: dict[str, list[str]] = {}
    for group in groups:
        for engine in group.engines:
            said = notes.setdefault(str(engine), [])
            said += [s for s in engine.backend_note(group.device.spec, group.request.quant) if s not in said]
    return notes


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is, None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _while_read(show: Watcher) -> Watcher:
    """Show events until whoever reads them is gone: that ends the run, whose last files are then written in silence.

    Raises:
        OSError: the reader is gone or its disk is full, told once.
    """
    gone = False

    def observe(event: Event | DevicePlan) -> None:
        nonlocal gone
        if gone:
            return
        try:
            show(event)
        except OSError:
            gone = True
            raise

    return observe


def _print_json(event: Event | DevicePlan, serves: Mapping[Path, Sequence[Use]]) -> None:
    line = json_line(event, serves)
    if line is not None:
        print(line, flush=True)


def _line(event: Event, progress: Progress, width: int | None) -> str | None:
    """One event as one plain line for a terminal of ``width`` columns, None for events without one."""
    match event:
        case RunStarted():
            gpus = f"{event.gpus} × " if event.gpus > 1 else ""
            return f"{gpus}{event.device.name}: {count(event.problems, 'problem')} for {', '.join(event.engines)}"
        case ProblemResult():
            return progress.result_line(event, width)
        case FileWritten():
            return plain_line(event)  # never broken, so that its path can be copied
        case Note() | TimeSpent():
            return wrap(plain_line(event), width, "  ")
        case _:
            return None


@contextmanager
def _screen(progress: Progress) -> Iterator[Callable[[str], None]]:
    """A way to say a line: above a live view on a terminal, else plainly."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield _say_plainly
        return
    # rich takes a tenth of a second to import, so only a terminal waits for it.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def renderable() -> Text:
        return Text("\n".join(progress_lines(progress.view())), overflow="ellipsis", no_wrap=True)

    with Live(get_renderable=renderable, console=console, refresh_per_second=4, transient=True):
        yield lambda line: console.print(Text(line), soft_wrap=True)  # a path that is copied stays in one piece


def _say_plainly(line: str) -> None:
    print(line, flush=True)
