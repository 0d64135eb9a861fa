"""What an operator sees: counters, metrics, `/-/stats` and the terminal."""
