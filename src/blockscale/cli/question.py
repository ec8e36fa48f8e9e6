"""The question before a run that occupies a real GPU."""

from __future__ import annotations

import os

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.report.plan import Plan, plan_lines
from blockscale.search import DEFAULT_TRIALS
from blockscale.tuning.request import TuneRequest

_STOCK_SPACE = 1280  # configs, where the strategy itself has no bound


def confirmed(request: TuneRequest, spec: DeviceSpec) -> None:
    """Show the plan and ask; only on a terminal.

    Raises:
        InputError: the answer was no.
    """
    usual = DEFAULT_TRIALS[request.search] or _STOCK_SPACE
    plan = Plan(request, spec, candidates=request.trials or usual, cpus=len(os.sched_getaffinity(0)))
    print("\n".join(plan_lines(plan)))
    try:
        answer = input("Go? [Y/n] ").strip().lower()
    except EOFError:
        answer = "n"
    if answer not in ("", "y", "yes"):
        raise InputError("not started, as you said; nothing was changed.")
