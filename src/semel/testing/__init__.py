"""For the tests of services that use semel, and of transports and stores written for it.

`semel.testing.contracts` holds the suites that every implementation of a protocol must pass.
"""

from semel.testing.reader import Reader

__all__ = ["Reader"]
