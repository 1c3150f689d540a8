"""Benchmarks of the service. `make bench` runs them and writes docs/performance.*."""
