"""Reading a recorded device of any layout."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.resources
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockscale.errors import InputError
from blockscale.paths import PathKind, kind_at
from blockscale.problem import Kernel, Problem, TileConfig, Trial
from blockscale.recording.columns import read_columns, read_configs
from blockscale.recording.header import LAYOUT, Header, read_header
from blockscale.recording.lines import BadLineError, bad, reading_line
from blockscale.recording.rows import read_layout_1, read_layout_2

_EMBEDDED = {"h200": "h200.jsonl.gz"}


class Recording:
    """The trials of one device, by problem and kernel. Trials are read when they are first asked for.

    ``digest`` identifies the content: two recordings of one device, one of them longer, are two.
    """

    def __init__(self, path: Path, header: Header, text: str, digest: str) -> None:
        self.path = path
        self.spec = header.spec
        self.environment = header.environment
        self.digest = digest
        self._header = header
        self._configs: tuple[TileConfig, ...] = ()  # of layout 3
        self._lines: dict[tuple[Problem, Kernel], list[tuple[int, str]]] = {}
        self._trials: dict[tuple[Problem, Kernel], tuple[Trial, ...]] = {}
        self._index(text)
        self._kernels: dict[Problem, tuple[Kernel, ...]] = {}
        for problem, kernel in self._lines:
            self._kernels[problem] = (*self._kernels.get(problem, ()), kernel)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem that has a trial, in order of size."""
        return tuple(sorted(self._kernels))

    def kernels(self, problem: Problem) -> tuple[Kernel, ...]:
        """Kernels that were measured on the problem, none if it is not recorded."""
        return self._kernels.get(problem, ())

    def trials(self, problem: Problem, kernel: Kernel) -> tuple[Trial, ...]:
        """Trials of one kernel on one problem in the order of the file.

        Raises:
            InputError: a line of them cannot be read.
        """
        key = (problem, kernel)
        if key not in self._trials:
            lines = self._lines.get(key, ())
            self._trials[key] = tuple(trial for n, line in lines for trial in self._read(n, line, problem, kernel))
        return self._trials[key]

    def __iter__(self) -> Iterator[Trial]:
        """All trials, problem by problem."""
        for problem in self.problems:
            for kernel in self.kernels(problem):
                yield from self.trials(problem, kernel)

    def _index(self, text: str) -> None:
        """Sort lines by problem and kernel without reading them whole: 15,000 lines in some 15 ms instead of 300."""
        lines = text.rstrip().split("\n")
        before = 1
        if self._header.layout == LAYOUT and len(lines) > 1:
            with reading_line(self.path, 2):
                self._configs = read_configs(json.loads(lines[1]))
            before = 2
        by_head: dict[str, list[tuple[int, str]]] = {}
        for number, line in enumerate(lines[before:], before + 1):
            if not (line.startswith("{") and line.endswith("}")):
                raise bad(self.path, number, "the line is not one whole JSON object")
            head = line.partition('"config"')[0]
            group = by_head.get(head)
            if group is None:
                key, whole = self._key_of(number, head, line)
                group = self._lines.setdefault(key, [])
                if whole:
                    by_head[head] = group
            group.append((number, line))
        if len(lines) <= before:
            raise bad(self.path, len(lines), "no trial follows")
        last, number = lines[-1], len(lines)
        key, _ = self._key_of(number, last, last)
        self._read(number, last, *key)

    def _key_of(self, number: int, head: str, line: str) -> tuple[tuple[Problem, Kernel], bool]:
        """Problem and kernel of a line, and whether its head alone tells them."""
        fields: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(head.rstrip(", ") + "}")
        whole = isinstance(fields, dict) and self._header.needed <= fields.keys()
        with reading_line(self.path, number):
            if not whole:
                fields = json.loads(line)
            if fields.get("record") != self._header.record:
                expected = self._header.record
                raise BadLineError(f"record {fields.get('record')!r} is not a trial record, {expected!r}")
            return self._header.problem_and_kernel(fields), whole

    def _read(self, number: int, line: str, problem: Problem, kernel: Kernel) -> tuple[Trial, ...]:
        with reading_line(self.path, number):
            fields = json.loads(line)
            if self._header.layout == LAYOUT:
                return tuple(read_columns(fields, self._configs, problem, kernel))
            read = read_layout_1 if self._header.layout == 1 else read_layout_2
            return (read(fields, problem, kernel),)


def load_recording(path: Path) -> Recording:
    """Read a recorded device, plain or gzip-compressed (told by content, not by name).

    Raises:
        InputError: the file cannot be read, is cut, or is no recording; the message names the line and the rule. Lines
            are read whole when their problem is first asked for, so a wrong value may show only then.
    """
    try:
        if kind_at(path, "give a file that you may read") not in (PathKind.FILE, None):
            raise InputError(f"{path} is no file: give a recording made by `blockscale export recording`.")
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
        text = content.decode("utf-8")
    except FileNotFoundError:
        shipped = ", ".join(f"recorded:{name}" for name in _EMBEDDED)
        raise InputError(f"{path}: there is no such recording: give an existing file, or one of {shipped}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed recording is cut or damaged ({error}): copy it again.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: a recording is JSON lines, plain or .gz.") from None
    except OSError as error:
        raise InputError(f"{path}: the recording cannot be read ({error.strerror}): give a readable file.") from None
    first = text.partition("\n")[0]
    with reading_line(path, 1):
        header = read_header(json.loads(first))
    return Recording(path, header, text, hashlib.sha256(content).hexdigest()[:16])


def embedded(name: str) -> Path:
    """The file of a recording that ships with the package, e.g. ``h200``.

    Raises:
        InputError: no recording of that name ships.
    """
    if name not in _EMBEDDED:
        raise InputError(
            f"recorded:{name} does not ship with blockscale: give {', '.join(_EMBEDDED)} or a file's path."
        )
    return Path(str(importlib.resources.files("blockscale") / "data" / _EMBEDDED[name]))
