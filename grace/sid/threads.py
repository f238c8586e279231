"""Linear algebra on one thread: the same input gives the same SIDs on any number of cores."""

import threadpoolctl

one_thread = threadpoolctl.threadpool_limits.wrap(limits=1)
"""Decorator. BLAS splits sums by its number of threads, and scikit-learn's k-means adds up the
threads' centroids in the order in which they finish; either could turn a near tie."""
