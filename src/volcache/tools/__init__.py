"""
The offline tools: what the command line says and does with a mount point nobody serves.

The store and the hot tier do the work; here are words, progress and folders of files.
"""
