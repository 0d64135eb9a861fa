"""The process: listening, serving with bjoern, draining, idle connections."""
