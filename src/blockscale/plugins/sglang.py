"""Entry point of SGLang's plugins (group ``sglang.srt.plugins``)."""

from __future__ import annotations

import os

from blockscale.plugins import VARIABLE


def register() -> None:
    """Let SGLang look into the folders of ``BLOCKSCALE_CONFIG_DIR`` first. Never raises; may be called repeatedly."""
    if os.environ.get(VARIABLE):
        from blockscale.plugins.serving import serve_from

        serve_from(os.environ[VARIABLE], "sglang")
