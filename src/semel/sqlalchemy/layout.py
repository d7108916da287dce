"""The numbers that the outbox is laid out by; stored in the control row and checked against it."""

SCHEMA_VERSION = 2
OLDEST_VERSION = 1  # of tables that this release can still work with
SLOTS = 1024
PARTITIONS = 64

# A row's lane is its partition plus one of these; NULL once it is SENT.
HOT = 0
PARKED = PARTITIONS
SCHEDULED = 2 * PARTITIONS
DEAD_BLOCKING = 3 * PARTITIONS
DEAD_RELEASED = 4 * PARTITIONS
