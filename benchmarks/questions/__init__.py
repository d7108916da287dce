"""One file per question; each has `ask(bench)`, and its order here is that of the page."""

NAMES = (
    "relay_sink",
    "relay_brokers",
    "backlog",
    "disturbed",
    "keys",
    "projectors",
    "write",
    "wakeup",
    "latency",
    "inbox",
    "idempotency",
    "other_databases",
    "footprint",
)
