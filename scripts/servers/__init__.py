"""The test servers of `scripts/services`: Python 3.11 standard library only, Linux."""
