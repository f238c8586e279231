"""One script a question. Run from the repository's root: `python -m benchmarks.<name>`."""
