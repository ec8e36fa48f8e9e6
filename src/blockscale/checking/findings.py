"""What is wrong with a config file, one finding a rule, and which of it can be fixed without a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """An error makes the engine fail, compute wrong numbers or pass the file over; a warning only costs time."""

    ERROR = "error"
    WARNING = "warning"


class Code(StrEnum):
    """The rule that a file breaks."""

    UNREADABLE = "unreadable"
    NOT_AN_OBJECT = "not-an-object"
    NEVER_FOUND = "never-found"
    KEY_NOT_INTEGER = "key-not-integer"
    KEY_NOT_POSITIVE = "key-not-positive"
    FIELD_MISSING = "field-missing"
    FIELD_UNKNOWN = "field-unknown"
    VALUE_ILLEGAL = "value-illegal"
    BK_NOT_DIVIDING = "bk-not-dividing"
    SMEM_OVERFLOW = "smem-overflow"
    LADDER_TRUNCATED = "ladder-truncated"
    LADDER_SPARSE = "ladder-sparse"
    KEYS_UNSORTED = "keys-unsorted"
    BK_RAISED = "bk-raised"
    COPIED = "copied"
    DEVICE_UNKNOWN = "device-unknown"
    NEVER_READ = "never-read"
    BYTES = "bytes"

    @property
    def severity(self) -> Severity:
        """What breaking this rule costs, in general."""
        return Severity.WARNING if self in _WARNINGS else Severity.ERROR


_WARNINGS = frozenset(
    {
        Code.LADDER_SPARSE,
        Code.KEYS_UNSORTED,
        Code.BK_RAISED,
        Code.COPIED,
        Code.DEVICE_UNKNOWN,
        Code.NEVER_READ,
        Code.BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that a file breaks: the message says where, what the engine does with it, and the way out."""

    code: Code
    message: str
    severity: Severity
    fixable: bool = False


def finding(code: Code, message: str, *, fixable: bool = False, severity: Severity | None = None) -> Finding:
    """A finding of its code's severity, unless another is given."""
    return Finding(code, message, severity or code.severity, fixable)


def harmful(findings: Iterable[Finding]) -> list[Finding]:
    """Those for which an engine should not be given a file: it would fail or compute wrong numbers.

    A file under a name that is never looked for is not read, and one without small keys is slow at worst.
    """
    harmless = (Code.NEVER_FOUND, Code.LADDER_TRUNCATED)
    return [each for each in findings if each.severity is Severity.ERROR and each.code not in harmless]


def listed(values: list[str], most: int = 6) -> str:
    """The values by commas, the first of them where they are many."""
    if len(values) <= most:
        return ", ".join(values)
    return f"{', '.join(values[:most])} and {len(values) - most} more"
