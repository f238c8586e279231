"""Whole searches by others' code or design, which `benchmarks.bench_peers` compares with."""
