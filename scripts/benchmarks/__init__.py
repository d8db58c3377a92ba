"""The benchmarks behind scripts/bench, one a file. Each has add(), its arguments, and run(), which returns an exit status."""
