"""The trial store: every trial ever made, with what it depended on, in one SQLite file on a local disk."""

from blockscale.store.database import JSON, Store
from blockscale.store.export import export_recording

__all__ = ["JSON", "Store", "export_recording"]
