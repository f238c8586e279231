"""GRACE's Tables 1, 2 and 3 on a generated catalogue: the parts of `benchmarks.matching`."""
