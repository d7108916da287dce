"""For the tests of services that use semel, and of transports and stores written for it.

`semel.testing.contracts` holds the suites that every implementation of a protocol must pass.
The fixtures `semel_storage`, `semel_bus` and `semel_clock` are there once semel is installed.
"""

from semel.testing.clock import FakeClock
from semel.testing.outbox import added, assert_added, drain
from semel.testing.reader import Reader

__all__ = ["FakeClock", "Reader", "added", "assert_added", "drain"]
