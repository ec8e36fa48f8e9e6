"""Rehearse a run of whole_model.py on more GPUs than there are: everything real but the work, which is slept through.

    python benchmarks/rehearse_gpus.py out/stock-0 --gpus 1 2 4 8 --json out/rehearsal.json

The same search, scheduler, threads, pipes, processes and files as in the run; a measuring process sleeps as long as the
trial took in the run and gives its result, a compile process as long as the compilation took. So the seconds show what
the parent process and the order of work cost with so many GPUs, on this machine's CPUs; that two real GPUs, their
hosts' memory and compilers do not slow each other down is not shown. No GPU is needed. Each number of GPUs gets
``--compilers`` compile processes for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompileRequest, PoolSettings  # noqa: E402
from blockscale.measure.protocol import (  # noqa: E402
    Describe,
    Description,
    Finals,
    Measured,
    Prepare,
    Request,
    Screen,
    Warnings,
)
from blockscale.problem import Phase, TrialStatus  # noqa: E402

_RUN_VARIABLE = "BLOCKSCALE_REHEARSED_RUN"
_UNKNOWN_COMPILE_S = 0.35  # where another problem's trial compiled it in the run; that of the stock job, on average
_UNKNOWN_TRIAL = (Measured(TrialStatus.TIMEOUT, message="not tried in the run"), 0.006)


def _saved() -> dict[str, Any]:
    saved: dict[str, Any] = pickle.loads(Path(os.environ[_RUN_VARIABLE]).read_bytes())
    return saved


def open_worker(options: object) -> Callable[[Request], Any]:
    """Entry of a measuring process."""
    saved = _saved()

    def answer(request: Request) -> Any:
        match request:
            case Describe():
                return Description(saved["spec"], saved["environment"], saved["spec"].memory_bytes)
            case Prepare():
                return None
            case Screen(problem, candidate, _):
                measured, seconds = saved["trials"].get((problem, candidate, Phase.SCREEN), _UNKNOWN_TRIAL)
                time.sleep(seconds)
                return measured
            case Finals(problem, candidates):
                found = [saved["trials"].get((problem, c, Phase.FINAL), _UNKNOWN_TRIAL) for c in candidates]
                time.sleep(sum(seconds for _, seconds in found))
                return [measured for measured, _ in found]
            case Warnings():
                return []

    return answer


def open_compiler(options: CompileOptions) -> Callable[[CompileRequest], CompileOutcome]:
    """Entry of a compile process."""
    compile_s = _saved()["compile_s"]

    def compile(request: CompileRequest) -> CompileOutcome:
        seconds = compile_s.get((request.problem, request.candidate)) or _UNKNOWN_COMPILE_S
        time.sleep(seconds)
        return CompileOutcome(TrialStatus.OK, compile_s=seconds, code=str(request.candidate))

    return compile


def save_run(folder: Path, path: Path) -> set[Any]:
    """Put what the processes need of a run's store into one file; the trials that it has."""
    from blockscale.store import Store

    with Store.open(folder / "trials.db", create=False) as store:
        (environment,) = store.environments()
        trials = [trial for _, trial in store.trials(environment)]
        spec = store.device_spec(environment)
    results = {
        (t.problem, t.candidate, t.phase): (Measured(t.status, t.samples_us, t.message, t.labels), t.elapsed_s)
        for t in trials
    }
    compile_s = {(t.problem, t.candidate): t.compile_s for t in trials if t.phase is Phase.SCREEN}
    path.write_bytes(
        pickle.dumps({"spec": spec, "environment": environment, "trials": results, "compile_s": compile_s})
    )
    return set(results)


def rehearse(run: dict[str, Any], known: set[Any], portfolio: Any, gpus: int, compilers: int) -> dict[str, Any]:
    """One rehearsal: seconds by name, and how many trials the run had not made."""
    from blockscale.engines import engine
    from blockscale.executor.local import LocalDevice, LocalSettings
    from blockscale.problem import WeightShape
    from blockscale.store import Store
    from blockscale.tuning.events import TrialFinished
    from blockscale.tuning.request import TuneRequest
    from blockscale.tuning.run import run_tune

    chosen = engine(run["engine"], run["engine_version"])
    missing = 0

    def watch(event: object) -> None:
        nonlocal missing
        if isinstance(event, TrialFinished):
            trial = event.trial
            missing += (trial.problem, trial.candidate, trial.phase) not in known

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        request = TuneRequest(
            weights=tuple(WeightShape(n, k) for n, k in run["weights"]),
            batch_sizes=tuple(run["batch_sizes"]),
            folders=((chosen.name, folder / "configs"),),
            engine_versions=((chosen.name, chosen.version),),
            seed=run["seed"],
        )
        pool = PoolSettings(workers=gpus * compilers, function=f"{Path(__file__).stem}:open_compiler")
        settings = LocalSettings(
            tuple(range(gpus)), folder / "cache", pool=pool, worker=f"{Path(__file__).stem}:open_worker"
        )
        with closing(LocalDevice(settings)) as device, Store.open(folder / "trials.db") as store:
            began_s, cpu_s = time.monotonic(), time.process_time()
            run_tune(request, [chosen], device, store, watch, portfolio)
            run_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            clock = device.clock()
    return {
        "gpus": gpus,
        "compilers": gpus * compilers,
        "run_s": run_s,
        "at_work_s": (clock.screening_s + clock.finals_s) / gpus,
        "idle_s": clock.idle_s / gpus,
        "parent_cpu_s": cpu_s,
        "missing": missing,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="DIR", help="--out of a run of whole_model.py")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--compilers", type=int, default=15, help="compile processes for each GPU")
    parser.add_argument("--json", type=Path, help="where to save every figure")
    args = parser.parse_args()
    from blockscale.costmodel import Portfolio, portfolio_for

    run = json.loads((args.run / "run.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary) / "run.pickle"
        known = save_run(args.run, saved)
        os.environ[_RUN_VARIABLE] = str(saved)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        portfolio = portfolio_for(_saved()["spec"], [Portfolio.load(args.run / "portfolio.json.gz")])
        print(f"the run itself: {run['parts_s']['run']:.1f} s with {run['time']['compile_workers']} compilers")
        rows = [rehearse(run, known, portfolio, gpus, args.compilers) for gpus in args.gpus]
    first = rows[0]
    for row in rows:
        print(
            f"{row['gpus']:3d} GPUs, {row['compilers']:3d} compilers: {row['run_s']:6.1f} s, "
            f"{row['run_s'] / first['run_s']:.2f} of the first; a GPU at work {row['at_work_s']:.1f} s, idle "
            f"{row['idle_s']:.1f} s; the parent's CPU {row['parent_cpu_s']:.1f} s; "
            f"{row['missing']} trials not in the run"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"run": run["job"], "seed": run["seed"], "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
