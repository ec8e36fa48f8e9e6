"""Engine versions, compared: ``0.5.9 < 0.5.15 < 0.5.15.post1 < 0.5.16 < main``."""

from __future__ import annotations

import re
from functools import lru_cache

from blockscale.errors import InputError

# (release padded with zeros, stage): stage -1 is a development or pre-release, 0 the release, n its n-th post-release.
Version = tuple[tuple[int, ...], int]

_RELEASE_LENGTH = 5
_MAIN: Version = ((1_000_000,) * _RELEASE_LENGTH, 0)
_LONGEST = 100  # characters; longer ones would also cost the pattern below too much
_PATTERN = re.compile(
    r"v?(?P<release>\d+(\.\d+)*)"
    r"(?P<pre>[-_.]?(alpha|a|beta|b|c|rc|preview|pre|dev)([-_.]?\d+)?)*"
    r"([-_.]?post[-_.]?(?P<post>\d*))?"
    r"([-_.]?dev[-_.]?\d*)?(\+.*)?",
    re.IGNORECASE | re.ASCII,
)


@lru_cache
def parse_version(text: str) -> Version:
    """Read a version as package indexes write them; ``main`` counts as newer than every release.

    Raises:
        InputError: the text is no version.
    """
    text = text.strip()
    if text == "main":
        return _MAIN
    match = _PATTERN.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        raise InputError(f"engine version {shown!r} is not a version: give one like 0.5.23, 0.5.15.post1, or main.")
    release = tuple(int(part) for part in match["release"].split("."))[:_RELEASE_LENGTH]
    padded = release + (0,) * (_RELEASE_LENGTH - len(release))
    if match["post"] is not None:
        return padded, int(match["post"] or 0) + 1
    return padded, -1 if match["pre"] else 0
