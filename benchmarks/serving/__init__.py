"""What `benchmarks.serve` is made of."""
