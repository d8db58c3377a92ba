"""Distances between two runs of jobs/training.py."""

import numpy as np


def difference(reference, other, prefix):
    """Largest difference of any array whose name begins with `prefix`, over the largest absolute value of them all."""
    with np.load(reference) as a, np.load(other) as b:
        names = [name for name in a.files if name.startswith(prefix)]
        assert names, f"{reference} has nothing named {prefix}*"
        assert sorted(a.files) == sorted(b.files), set(a.files) ^ set(b.files)
        largest = max(float(np.abs(a[name]).max()) for name in names if a[name].size)
        return max(float(np.abs(a[name] - b[name]).max()) for name in names if a[name].size) / max(largest, 1e-300)


def identical(reference, other):
    """True if all arrays of both runs are equal bit for bit."""
    with np.load(reference) as a, np.load(other) as b:
        return sorted(a.files) == sorted(b.files) and all(np.array_equal(a[name], b[name]) for name in a.files)
