"""Opening, writing and reading the store."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from filelock import BaseFileLock

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus
from blockscale.store import rows
from blockscale.store.failures import damaged, opening, using
from blockscale.store.filesystem import MOUNT_TABLE, check_location, locate
from blockscale.store.lock import hold_store
from blockscale.store.schema import broken_parts, check_header, check_version, migrate

JSON: TypeAlias = Any
"""What ``json.dumps`` takes and ``json.loads`` gives."""

log = logging.getLogger(__name__)

_BUSY_TIMEOUT_S = 10.0  # how long to wait for a person's own sqlite3 to let go
_PAGE_ROWS = 1000


class Store:
    """All trials by environment, problem, candidate and phase. Made by ``Store.open``; usable from any thread.

    What ``add`` and ``snapshot`` have written survives the death of the process, also by SIGKILL. A power cut can cost
    the last moments (``synchronous=NORMAL``) but leaves the file whole.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: BaseFileLock) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._mutex = threading.RLock()
        self._closed = False
        query = connection.execute
        # One writer, so numbers given out once hold as long as the store is open.
        self._environments = {rows.read_environment(t): i for i, t in query("SELECT id, fields FROM environments")}
        self._problems = {
            rows.read_problem(row): i for i, *row in query(f"SELECT id, {rows.PROBLEM_COLUMNS} FROM problems")
        }
        self._candidates = {
            rows.read_candidate(row): i for i, *row in query(f"SELECT id, {rows.CANDIDATE_COLUMNS} FROM candidates")
        }

    @classmethod
    def open(cls, path: Path, *, create: bool = True, mount_table: Path = MOUNT_TABLE) -> Self:
        """Open a store for this process alone, bring it to the newest version, create it where there is none.

        ``create=False`` refuses a missing file. ``mount_table`` tells which folders are on a network.

        Raises:
            InputError: the store cannot be used: used by another run, damaged, not a store, from a newer version, not
                writable, on a network file system. Nothing was changed.
            IncompleteRunError: the disk is full or failing.
        """
        path = locate(path)
        check_location(path, mount_table)
        if not create and not path.exists():
            raise InputError(f"store {path} does not exist: give --store the file of an earlier run.")
        if not create and not path.stat().st_size:
            raise InputError(f"store {path} is empty: give --store the file of an earlier run.")
        check_header(path)
        lock = hold_store(path)
        connection = None
        try:
            with opening(path):
                connection = _connect(path)
                return cls(path, connection, lock)
        except BaseException:
            if connection is not None:
                connection.close()
            lock.release()
            raise

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the store is made of, or may be."""
        ends = ("", "-wal", "-shm", "-journal", ".lock")
        return tuple(self.path.with_name(self.path.name + end) for end in ends)

    def close(self) -> None:
        """Fold the write-ahead log into the file and let other runs in. Safe to call twice."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._connection.close()
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def register(self, environment: Environment, spec: DeviceSpec) -> None:
        """Keep the limits of the device that measures in this environment.

        Raises:
            IncompleteRunError: the store could not be written.
        """
        with self._mutex, using(self.path):
            number = self._environments.get(environment)
            if number is None:
                number = self._insert_environment(environment)
                self._environments[environment] = number
            self._connection.execute("UPDATE environments SET spec = ? WHERE id = ?", (rows.spec_json(spec), number))

    def device_spec(self, environment: Environment) -> DeviceSpec | None:
        """Limits registered for the environment, None where there are none."""
        with self._mutex, using(self.path):
            row = self._connection.execute(
                "SELECT spec FROM environments WHERE id = ?", (self._environments.get(environment),)
            ).fetchone()
            return rows.read_spec(row[0]) if row and row[0] else None

    def environments(self) -> list[Environment]:
        """Every environment registered or measured in, the first seen first."""
        return list(self._environments)

    def add(self, environment: Environment, trial: Trial) -> None:
        """Keep a trial. Once this returns, the death of the process loses nothing of it.

        Raises:
            IncompleteRunError: the store could not be written; it holds all trials before this one.
        """
        self._add(environment, [trial], compared=False)

    def add_comparison(self, environment: Environment, trials: Sequence[Trial]) -> None:
        """Keep trials of one problem that were timed interleaved: all of them, or none if the process dies meanwhile.

        Raises:
            IncompleteRunError: the store could not be written; it holds none of these trials.
        """
        self._add(environment, trials, compared=True)

    def _add(self, environment: Environment, trials: Sequence[Trial], *, compared: bool) -> None:
        new: list[tuple[dict[Any, int], Any]] = []  # numbers that hold once the transaction does

        def number(known: dict[Any, int], value: Any, insert: Callable[[], int]) -> int:
            if value not in known:
                known[value] = insert()
                new.append((known, value))
            return known[value]

        with self._mutex, using(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                comparison = None
                for t in trials:
                    numbers = (
                        number(self._environments, environment, lambda: self._insert_environment(environment)),
                        number(self._problems, t.problem, partial(self._insert_problem, t.problem)),
                        number(self._candidates, t.candidate, partial(self._insert_candidate, t.candidate)),
                    )
                    trial_id = self._insert_trial((*numbers, comparison), t)
                    if compared and comparison is None:
                        comparison = trial_id
                        self._connection.execute("UPDATE trials SET comparison = id WHERE id = ?", (trial_id,))
                self._connection.execute("COMMIT")
            except BaseException:
                for known, value in new:
                    del known[value]
                if self._connection.in_transaction:  # SQLite rolls back by itself where the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def find(self, environment: Environment, problem: Problem, candidate: Candidate, phase: Phase) -> Trial | None:
        """The latest trial of this candidate on this problem in this environment and phase, None if there is none."""
        with self._mutex, using(self.path):
            numbers = (
                self._problems.get(problem),
                self._candidates.get(candidate),
                self._environments.get(environment),
            )
            if None in numbers:
                return None
            row = self._connection.execute(
                f"SELECT {rows.TRIAL_COLUMNS} FROM trials WHERE problem = ? AND candidate = ? AND environment = ? "
                "AND phase = ? ORDER BY id DESC LIMIT 1",
                (*numbers, str(phase)),
            ).fetchone()
            return rows.read_trial(row, problem, candidate) if row else None

    def find_comparison(
        self, environment: Environment, problem: Problem, candidates: Sequence[Candidate]
    ) -> list[Trial] | None:
        """The trials of ``candidates``, in their order, from the latest comparison that held them all; None without."""
        with self._mutex, using(self.path):
            numbers = [self._candidates.get(c) for c in candidates]
            if not numbers or None in numbers:
                return None
            marks = ", ".join("?" * len(numbers))
            found = self._connection.execute(
                f"SELECT candidate, {rows.TRIAL_COLUMNS} FROM trials WHERE comparison = ("
                f"SELECT comparison FROM trials WHERE problem = ? AND environment = ? AND candidate IN ({marks}) "
                "AND comparison IS NOT NULL GROUP BY comparison HAVING count(*) = ? ORDER BY comparison DESC LIMIT 1)",
                (self._problems.get(problem), self._environments.get(environment), *numbers, len(numbers)),
            ).fetchall()
            by_number = {n: row for n, *row in found}
            if not by_number:
                return None
            return [rows.read_trial(by_number[n], problem, c) for n, c in zip(numbers, candidates, strict=True)]

    def trials(
        self,
        environment: Environment | None = None,
        problem: Problem | None = None,
        statuses: Collection[TrialStatus] = tuple(TrialStatus),
    ) -> Iterator[tuple[Environment, Trial]]:
        """Trials in the order of ``add``, all or those of one environment, problem or of some statuses.

        Adding meanwhile is allowed.
        """
        if environment is not None and environment not in self._environments:
            return
        if problem is not None and problem not in self._problems:
            return
        chosen = {
            "environment": self._environments[environment] if environment else None,
            "problem": self._problems[problem] if problem else None,
        }
        wanted = {column: number for column, number in chosen.items() if number is not None}
        conditions = "".join(f" AND {column} = :{column}" for column in wanted)
        if len(statuses) < len(TrialStatus):
            conditions += f" AND status IN ({', '.join(repr(str(status)) for status in statuses)})"
        select = (
            f"SELECT id, environment, problem, candidate, {rows.TRIAL_COLUMNS} FROM trials "
            f"WHERE id > :last{conditions} ORDER BY id LIMIT {_PAGE_ROWS}"
        )
        last = 0
        while True:
            with self._mutex, using(self.path):
                page = self._connection.execute(select, {"last": last, **wanted}).fetchall()
                environments = {number: value for value, number in self._environments.items()}
                problems = {number: value for value, number in self._problems.items()}
                candidates = {number: value for value, number in self._candidates.items()}
                trials = [rows.read_trial(row, problems[p], candidates[c]) for _, _, p, c, *row in page]
            for (_, e, *_), trial in zip(page, trials, strict=True):
                yield environments[e], trial
            if len(page) < _PAGE_ROWS:
                return
            last = page[-1][0]

    def snapshot(self, run_key: str, name: str, make: Callable[[], JSON]) -> JSON:
        """The value kept under this run and name; at first, what ``make`` gives is kept.

        First and later calls return equal values: what JSON changes (tuples to lists, keys to text) it changes at once.

        Raises:
            IncompleteRunError: the store could not be written.
        """
        with self._mutex, using(self.path):
            row = self._connection.execute(
                "SELECT value FROM snapshots WHERE run_key = ? AND name = ?", (run_key, name)
            ).fetchone()
            if row:
                return rows.read_json(row[0])
            text = json.dumps(make(), separators=(",", ":"))  # ASCII: files may hold halves of surrogate pairs
            self._connection.execute("INSERT INTO snapshots VALUES (?, ?, ?)", (run_key, name, text))
            return json.loads(text)

    def has_snapshot(self, run_key: str, name: str) -> bool:
        """Whether a value is kept under this run and name."""
        with self._mutex, using(self.path):
            query = "SELECT count(*) FROM snapshots WHERE run_key = ? AND name = ?"
            return bool(self._connection.execute(query, (run_key, name)).fetchone()[0])

    def _insert_environment(self, environment: Environment) -> int:
        return self._insert("environments", "key, fields", (environment.key, rows.environment_json(environment)))

    def _insert_problem(self, problem: Problem) -> int:
        return self._insert("problems", rows.PROBLEM_COLUMNS, rows.problem_row(problem))

    def _insert_candidate(self, candidate: Candidate) -> int:
        return self._insert("candidates", rows.CANDIDATE_COLUMNS, rows.candidate_row(candidate))

    def _insert_trial(self, numbers: tuple[int | None, ...], trial: Trial) -> int:
        columns = "environment, problem, candidate, comparison, " + rows.TRIAL_COLUMNS
        return self._insert("trials", columns, (*numbers, *rows.trial_row(trial)))

    def _insert(self, table: str, columns: str, row: rows.Row) -> int:
        marks = ", ".join("?" * len(row))
        number = self._connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", row).lastrowid
        assert number is not None
        return number


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # damage shows in what is read
    try:
        (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if report != "ok":
            raise damaged(path, report.splitlines()[-1])
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        check_version(path, version, application)
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables:
            raise InputError(f"store {path} is another program's database: give --store another file.")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 256")  # pages: the log stays near 1 MiB
        migrate(connection)
        if broken := broken_parts(connection):
            raise damaged(path, f"{', '.join(broken)} not as made")
    except BaseException:
        connection.close()
        raise
    log.debug("opened store %s, version was %d", path, version)
    return connection
