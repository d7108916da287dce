"""What a seed stands for: who takes part, and what goes wrong how often."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random

from semel import OutboxProjectorConfig, RetryPolicy

#: How often it strikes where it is switched on; a probability per call or per message.
RATES = {
    "database_cut": 0.004,
    "database_answer_lost": 0.02,
    "database_busy": 0.02,
    "database_slow": 0.01,
    "broker_cut": 0.02,
    "broker_slow": 0.05,
    "broker_silent": 0.04,
    "batch_cut": 0.05,
    "rejected": 0.1,
    "refused_for_good": 0.04,
    "dropped": 0.05,
    "unconfirmed": 0.08,
    "duplicated": 0.1,
    "delayed": 0.15,
    "ack_lost": 0.08,
    "handler_fails": 0.15,
    "handler_stubborn": 0.04,
}

#: What the nemesis does to nodes and servers.
ACTS = (
    "crash",
    "freeze",
    "freeze_at_batch",
    "freeze_at_failure",
    "crash_at_batch",
    "crash_at_commit",
    "restart",
    "cut_database",
    "cut_broker",
    "outage",
    "database_restart",
    "topic_trouble",
    "requeue",
)

LEASE = timedelta(seconds=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Drawn once per seed. Each seed has only some of the faults: they would hide one another."""

    relays: int
    consumers: int
    apis: int
    keys: int
    requests: int
    seconds: float
    acts: tuple[str, ...]
    rates: dict[str, float]
    batch_size: int
    shuffled: bool
    config: OutboxProjectorConfig
    retry: RetryPolicy

    def rate(self, name: str) -> float:
        return self.rates.get(name, 0.0)


def draw(chance: Random, *, requests: int | None = None) -> Plan:
    """Return the plan of a seed; *requests* makes it longer or shorter."""
    acts = [act for act in ACTS if chance.random() < 0.5] or ["crash"]
    number = chance.randint(2, 8) if requests is None else requests
    return Plan(
        relays=chance.randint(1, 3),
        consumers=chance.randint(1, 2),
        apis=chance.randint(1, 2),
        keys=chance.randint(1, 4),
        requests=number,
        seconds=number * chance.uniform(0.5, 1.5),
        acts=tuple(chance.choice(acts) for _ in range(chance.randint(0, 2 + number // 3))),
        rates={name: rate for name, rate in RATES.items() if chance.random() < 0.4},
        batch_size=chance.choice((1, 1, 4)),
        shuffled=chance.random() < 0.75,
        config=OutboxProjectorConfig(
            batch_size=chance.choice((1, 3, 100)),
            max_retry_attempts=12,
            sleep_busy=0.4,
            sleep_idle=2.0,
            lease_seconds=chance.choice((4.0, 6.0)),
            publish_timeout_seconds=chance.choice((2.0, 30.0)),
            concurrency=chance.choice((1, 4)),
            retry_base_seconds=0.2,
            retry_max_seconds=2.0,
            breaker_max_seconds=2.0,
            sweep_seconds=5.0,
            keep_sent=chance.random() < 0.8,
        ),
        retry=RetryPolicy(max_attempts=12, base_seconds=0.1, max_seconds=1.0),
    )
