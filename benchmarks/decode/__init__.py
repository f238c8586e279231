"""Parts of `benchmarks.bench_decode`."""
