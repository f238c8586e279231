"""The seeded catalogue and request generator behind `benchmarks/catalog.py` (docs/benchmark.md)."""
