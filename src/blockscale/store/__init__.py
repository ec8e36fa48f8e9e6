"""The trial store: every trial ever made, with what it depended on, in one SQLite file on a local disk."""

from blockscale.store.database import Store
from blockscale.store.export import choose_environment, export_recording, limits_of
from blockscale.store.filesystem import locate

__all__ = ["Store", "choose_environment", "export_recording", "limits_of", "locate"]
