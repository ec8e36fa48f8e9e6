"""From rows to plain view data, and from view data to terminal text; nothing here prints."""
