"""What serving engines call in each of their processes: config files from folders of our own.

Importing this package costs nothing, and the entry points do nothing unless ``BLOCKSCALE_CONFIG_DIR`` is set.
"""

VARIABLE = "BLOCKSCALE_CONFIG_DIR"
"""Names a folder of tuned files, or several, separated as in PATH; the first that has a file is taken."""
