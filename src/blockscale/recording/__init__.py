"""Recorded devices as JSON lines: reading and writing.

The first line describes the device and how it was measured. Three layouts are read, the newest is written:

* layout 1 (no ``layout`` field): a trial a line; kernels ``generic`` and ``hopper``, the fastest and the slowest replay
  of each trial, one quantisation for the whole file.
* layout 2: a trial a line, with raw samples, phase, status, message, and the trial's own quantisation.
* layout 3: the second line lists all configs; every further line holds trials of one problem and kernel as columns.
  Some 60% of the size of layout 2, and read three times as fast.
"""

from blockscale.recording.reading import Recording, embedded, load_recording
from blockscale.recording.writing import require_replaceable, write_recording

__all__ = ["Recording", "embedded", "load_recording", "require_replaceable", "write_recording"]
