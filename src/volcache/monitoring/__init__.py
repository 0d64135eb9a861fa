"""Counters of an instance, and how they are shown: Prometheus, JSON, a terminal."""
