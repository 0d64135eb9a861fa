"""The process: listening, serving with bjoern, graceful shutdown, idle connections."""
