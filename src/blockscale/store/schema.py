"""Tables of the store and the steps from each version to the next."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from blockscale.errors import InputError

# 'blsc': tells a store from the databases of other programs.
APPLICATION_ID = 0x626C7363

# Environments, problems and candidates stand in tables of their own and trials refer to them by number: a trial takes
# about 100 bytes. Samples are packed little-endian float64. Trials that were timed interleaved share a comparison.
_VERSION_1 = """
CREATE TABLE environments (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    fields TEXT NOT NULL,
    spec TEXT
);
CREATE TABLE problems (
    id INTEGER PRIMARY KEY,
    m INTEGER NOT NULL,
    n INTEGER NOT NULL,
    k INTEGER NOT NULL,
    quant TEXT NOT NULL,
    block_n INTEGER NOT NULL,
    block_k INTEGER NOT NULL,
    out_dtype TEXT NOT NULL,
    UNIQUE (m, n, k, quant, block_n, block_k, out_dtype)
);
CREATE TABLE candidates (
    id INTEGER PRIMARY KEY,
    kernel TEXT NOT NULL,
    block_m INTEGER NOT NULL,
    block_n INTEGER NOT NULL,
    block_k INTEGER NOT NULL,
    group_m INTEGER NOT NULL,
    num_warps INTEGER NOT NULL,
    num_stages INTEGER NOT NULL,
    swap_ab INTEGER NOT NULL,
    split_k INTEGER NOT NULL,
    waves_per_eu INTEGER,
    matrix_instr_nonkdim INTEGER,
    kpack INTEGER,
    extra TEXT
);
CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    environment INTEGER NOT NULL REFERENCES environments (id),
    problem INTEGER NOT NULL REFERENCES problems (id),
    candidate INTEGER NOT NULL REFERENCES candidates (id),
    phase TEXT NOT NULL,
    status TEXT NOT NULL,
    samples_us BLOB NOT NULL,
    compile_s REAL NOT NULL,
    elapsed_s REAL NOT NULL,
    message TEXT,
    labels TEXT,
    comparison INTEGER
);
CREATE INDEX trials_of_problem ON trials (problem, candidate, environment, phase);
CREATE INDEX trials_of_comparison ON trials (comparison) WHERE comparison IS NOT NULL;
CREATE TABLE snapshots (
    run_key TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_key, name)
) WITHOUT ROWID;
"""

MIGRATIONS: tuple[str, ...] = (_VERSION_1,)
"""Step i leads from version i to i + 1. Steps are only ever added."""


def check_header(path: Path) -> None:
    """Refuse a file that is no store of ours, from its first bytes and without touching it.

    An empty file is a new store.

    Raises:
        InputError: not an SQLite database, another program's, or written by a newer blockscale.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"store {path} cannot be read ({error.strerror}): give --store another file.") from None
    if not header:
        return
    # https://www.sqlite.org/fileformat2.html#the_database_header
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise InputError(f"store {path} is not a blockscale store (not an SQLite file): give --store another file.")
    version, application = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
    check_version(path, version, application)


def check_version(path: Path, version: int, application: int) -> None:
    """Refuse another program's database and a newer version's.

    Raises:
        InputError: either.
    """
    if application not in (0, APPLICATION_ID) or (application == 0 and version != 0):
        raise InputError(f"store {path} is another program's database: give --store another file.")
    if version > len(MIGRATIONS):
        raise InputError(
            f"store {path} was written by a newer blockscale (store version {version}, this one reads up to "
            f"{len(MIGRATIONS)}): upgrade blockscale, or give --store another file."
        )


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring a database to the newest version. Each step and the record that it was done are one transaction."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(migrations[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def broken_parts(connection: sqlite3.Connection) -> list[str]:
    """Names of tables and indexes of the newest version that the database lacks or has otherwise: it was damaged."""
    found = dict(_parts(connection))
    return sorted(name for name, statement in _expected_parts() if found.get(name) != statement)


def _parts(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()


@functools.cache
def _expected_parts() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        return frozenset(_parts(connection))
