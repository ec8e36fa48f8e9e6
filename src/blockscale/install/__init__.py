"""Tuned files put into an installed engine's own config folder, and taken out again."""

from blockscale.plugins import VARIABLE

WAY_OUT = f"set {VARIABLE} to the folder of the tuned files where the engine runs, and it reads them from there"
"""What always works instead, as the end of a message."""
