"""Tuned files put into an installed engine's own config folder, and taken out again."""
