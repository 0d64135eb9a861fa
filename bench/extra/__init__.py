"""Measurements that the documentation cites and `make bench` does not repeat."""
