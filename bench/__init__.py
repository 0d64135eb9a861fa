"""The benchmarks; `make bench` runs `bench.run`."""
