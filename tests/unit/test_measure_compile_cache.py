"""The compiler's cache folder stays within its bound and never holds what cannot be read."""

import os
from pathlib import Path

from blockscale.measure.compile_cache import default_cache_dir, drop_unreadable, prune

LONG_AGO = 1_000_000_000.0


def entry(folder: Path, name: str, size: int, used_at: float | None = None) -> Path:
    path = folder / name / "kernel.cubin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0" * size)
    if used_at is not None:
        os.utime(path, (used_at, used_at))
    return path.parent


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    oldest, older, old = (entry(tmp_path, name, 100, LONG_AGO + i) for i, name in enumerate("cab"))
    assert prune(tmp_path, limit_bytes=150) == 200
    assert not oldest.exists()
    assert not older.exists()
    assert old.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_another_run_may_be_using_stays(tmp_path: Path) -> None:
    fresh = entry(tmp_path, "fresh", 100)
    stale = entry(tmp_path, "stale", 100, LONG_AGO)
    prune(tmp_path, limit_bytes=0)
    assert fresh.exists()
    assert not stale.exists()


def test_within_the_bound_nothing_is_touched(tmp_path: Path) -> None:
    entry(tmp_path, "a", 100, LONG_AGO)
    assert prune(tmp_path, limit_bytes=100) == 0
    assert prune(tmp_path / "absent") == 0


def test_entries_that_do_not_parse_are_dropped(tmp_path: Path) -> None:
    good, bad = entry(tmp_path, "good", 1), entry(tmp_path, "bad", 1)
    (good / "k.json").write_text("{}")
    (bad / "k.json").write_text("")
    assert drop_unreadable(tmp_path) == 1
    assert good.exists()
    assert not bad.exists()


def test_the_folder_follows_the_xdg_rule() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/blockscale/triton")
    assert default_cache_dir({}).parts[-3:] == (".cache", "blockscale", "triton")
