"""The benchmarks behind scripts/bench, one a file: job.py (whole training jobs), alloc.py (one driver allocation)."""
