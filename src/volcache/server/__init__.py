"""The process: listening, the front with bjoern behind it, signals."""
