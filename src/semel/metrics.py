"""Every metric: its name, labels and meaning. What is not in this list is not exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
#: What a gauge means for several processes of one program: one of them is right, or all together.
Across = Literal["mostrecent", "max", "sum"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; labels never hold ids, keys or tenants."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    across: Across = "mostrecent"
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str, across: Across = "mostrecent") -> Metric:
    return Metric(name=name, kind="gauge", help=text, labels=labels, across=across)


def _seconds(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="histogram", help=text, labels=labels, buckets=_SECONDS)


_CONSUMER = ("consumer_name", "topic")
_HANDLED = ("consumer_name", "event_type")

ALL = (
    # Sampled from the database.
    _gauge("outbox_backlog", "Events with status NEW."),
    _gauge("outbox_failed", "Events with status FAILED, which are tried again."),
    _gauge("outbox_dead", "Events with status DEAD."),
    _gauge("outbox_blocked_keys", "Keys that wait behind a DEAD event."),
    _gauge("outbox_parked", "Events that wait behind a blocked key, a pause or an open breaker."),
    _gauge("outbox_scheduled", "Events whose time has not come."),
    _gauge("outbox_oldest_unsent_age_seconds", "Age of the oldest event that is not sent."),
    _gauge("outbox_pauses", "Pauses that operators have set."),
    _gauge("outbox_sampled_timestamp_seconds", "When the table was last looked at for these."),
    # The projector.
    _counter("outbox_published_total", "Events that the broker confirmed.", "topic", "transport"),
    _seconds("outbox_publish_latency_seconds", "Time from commit to the confirmation.", "topic"),
    _seconds(
        "outbox_publish_duration_seconds", "Time that the broker took for a batch.", "outcome"
    ),
    _counter("outbox_publish_failures_total", "Attempts counted against events.", "class"),
    _counter("outbox_retries_total", "Events that will be tried again.", "topic"),
    _counter("outbox_died_total", "Events that became DEAD.", "topic"),
    _counter("outbox_late_total", "Rows that only a sweep found: their writers took no lock."),
    _counter("outbox_lease_lost_total", "Partitions that another projector took over."),
    _gauge("outbox_leases_held", "Partitions that this projector owns.", across="sum"),
    _counter("outbox_wakeups_total", "Times that a commit or a notification woke the projector."),
    _gauge(
        "outbox_relay_last_success_timestamp_seconds",
        "When the broker last confirmed an event.",
        across="max",
    ),
    _gauge(
        "outbox_circuit_open",
        "1 while the broker or a topic is in trouble and left alone.",
        "destination",
        across="max",
    ),
    _counter("outbox_circuit_alerts_total", "Breakers open for too long.", "destination"),
    # Consumers.
    _counter("consumer_inbox_processed_total", "Messages processed for the first time.", *_HANDLED),
    _counter("consumer_inbox_duplicates_total", "Messages skipped as duplicates.", *_HANDLED),
    _seconds(
        "consumer_inbox_processing_duration_seconds",
        "Time of a message's transaction, its handler included.",
        *_HANDLED,
    ),
    _counter(
        "consumer_inbox_parked_total",
        "Messages given up or put aside.",
        *("consumer_name", "reason"),
    ),
    _counter("consumer_handler_errors_total", "Attempts of handlers that failed.", *_HANDLED),
    _counter(
        "consumer_troubles_total",
        "Attempts that failed through no fault of the message, such as a lost database.",
        "consumer_name",
    ),
    # Sampled from consumers and their brokers.
    _gauge("consumer_lag_messages", "Messages that wait in the broker for a group.", *_CONSUMER),
    _gauge("consumer_connected", "1 while the broker may deliver.", *_CONSUMER, across="max"),
    _gauge("consumer_in_flight", "Messages taken and not acknowledged.", *_CONSUMER, across="sum"),
    _gauge(
        "consumer_oldest_running_seconds",
        "For how long the oldest running handler has been at it.",
        *_CONSUMER,
        across="max",
    ),
    # The rest.
    _counter("idempotency_requests_total", "Requests with an idempotency key.", "outcome"),
    _seconds("command_duration_seconds", "Time of a command.", "command", "outcome"),
    _counter("cleanup_removed_total", "Finished rows that the clean-up deleted.", "table"),
    _gauge("semel_build_info", "1, with the version that runs.", "version", across="max"),
)
METRICS = {metric.name: metric for metric in ALL}

#: Operations whose duration is a metric.
DURATIONS = {
    "publish": METRICS["outbox_publish_duration_seconds"],
    "command": METRICS["command_duration_seconds"],
}
