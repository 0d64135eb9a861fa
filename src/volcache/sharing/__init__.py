"""A directory that several processes use: its owner serves the others, its guests."""
