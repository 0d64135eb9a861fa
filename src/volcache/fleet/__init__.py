"""Several instances together: what an operator asks and tells them from one place."""
