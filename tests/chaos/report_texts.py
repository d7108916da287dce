"""The sentences of RELIABILITY.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what is under it, and the command that runs it again."""

    title: str
    text: str
    command: str


HEAD = """\
# Reliability

What attacks semel, and what came of it. Made by `python -m tests.chaos report` from the results of
runs; a test checks that nobody wrote in it. What is promised is in
[docs/guarantees.md](docs/guarantees.md)."""

CHAOS = Section(
    "Process chaos",
    """\
Services, relays and consumers as processes of their own, real databases and brokers, a proxy on
every link. While clients transfer money and append to lists, processes are killed and stopped,
servers restarted, links cut. An offline checker then holds what was committed against what took
effect: twelve invariants.""",
    "make chaos",
)

RECOVERY = """\
How often each fault was made, and for how many seconds the slowest event that was committed while
it lasted had to wait for its effect. Faults overlap, and of several runs the slowest is shown."""

LAYERS = {
    "crash": Section(
        "Crash points",
        """\
The process is killed at each named failpoint, at each pass, started again, and the books are
checked.""",
        "python -m tests.crash",
    ),
    "simulation": Section(
        "Simulation",
        """\
The real projector, consumer and idempotency code on a loop with virtual time, where a seed decides
what runs next and what breaks. A seed replays exactly.""",
        "python -m tests.simulation --minutes 5",
    ),
    "properties": Section(
        "Stateful properties",
        """\
Random sequences of operations on a real database, against models that are plain dictionaries.""",
        "python -m tests.properties --minutes 5",
    ),
    "model": Section(
        "Model of the protocol",
        """\
Every reachable state of a small model of write path, leases, inbox and idempotency.""",
        "python -m tests.model",
    ),
    "mutants": Section(
        "Planted bugs",
        """\
Known bugs are planted into a copy of semel, one at a time, and the tests must find each.""",
        "make chaos-mutants",
    ),
    "catalogue": Section(
        "Failure modes",
        """\
What can go wrong, row by row, with the tests that cover it:
[docs/reliability/failure-modes.md](docs/reliability/failure-modes.md).""",
        "python -m tests.catalogue",
    ),
}

COMPARISON = Section(
    "The same on other designs",
    """\
Does the harness find what it should? The same workloads, kills and checker on the relay that
document 001 describes (`tests/chaos/peers/seed_relay.py`), and on another library's inbox, as
released (`tests/chaos/peers/inboxes.py`).

- Relays: a writer that rolls back at times; two relays that are killed before, in and after
  publishing; a broker that refuses one event in fifty, and is away for seconds.
- Inboxes: messages that come again; handlers that fail at first; consumers that are killed before,
  in and after the handler's transaction.

*Lost*: committed, and without effect in a consumer that nobody will ever tell of it; an event that
two consumers miss counts twice. *Dead*: given up while the broker was away.""",
    "python -m tests.chaos compare",
)
