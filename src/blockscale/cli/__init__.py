"""The command line: composes the library's parts, prints, and turns errors into exit codes."""
