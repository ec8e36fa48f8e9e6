"""Fixtures shared by the whole test set."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fast", max_examples=60, deadline=None)
settings.register_profile("stress", max_examples=2000, deadline=None)  # `make stress`
settings.load_profile("fast")


@pytest.fixture(scope="session")
def published_data() -> Path:
    """Folder with published model configs and engine files; they are not ours to ship, so tests skip without them."""
    default = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("BLOCKSCALE_PUBLISHED_DATA", default))
    if not folder.is_dir():
        pytest.skip("no published model configs and engine files here (BLOCKSCALE_PUBLISHED_DATA names their folder)")
    return folder
