"""The question before a run that occupies a real GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockscale.errors import InputError
from blockscale.report.plan import Plan, plan_lines
from blockscale.report.table import render_table
from blockscale.report.weights import DevicePlan, weights_table
from blockscale.search import DEFAULT_TRIALS

if TYPE_CHECKING:
    from blockscale.tuning.groups import Group

_STOCK_SPACE = 1280  # configs, where the strategy itself has no bound


def confirmed(groups: Sequence[Group], plans: Sequence[DevicePlan]) -> None:
    """Show the plan of each group and ask; only on a terminal.

    Raises:
        InputError: the answer was no.
    """
    cpus = len(os.sched_getaffinity(0)) // len(groups)
    for group, plan in zip(groups, plans, strict=True):
        if plan.says_more_than_sizes:
            print(f"{render_table(weights_table(plan))}\n")
        request, device = group.request, group.device
        candidates = request.trials or DEFAULT_TRIALS[request.search] or _STOCK_SPACE
        print("\n".join(plan_lines(Plan(request, device.spec, candidates, cpus, device.clock().gpus))))
    try:
        answer = input("Go? [Y/n] ").strip().lower()
    except EOFError:
        answer = "n"
    if answer not in ("", "y", "yes"):
        raise InputError("not started, as you said; nothing was changed.")
