"""Config files held against what their engine does with them: what it never finds, cannot read or runs wrongly."""
