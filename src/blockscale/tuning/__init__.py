"""The run: problems in order, search against a device, store, selection, files."""
