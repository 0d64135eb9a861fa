"""A directory as a cache in the process that opens it; see docs/PYTHON.md."""
