"""What an observer must do, or rather must not."""

from __future__ import annotations

from abc import abstractmethod

import pytest

from semel.envelope import MessageEnvelope
from semel.metrics import ALL
from semel.observer import Operation
from semel.protocols import Observer

_HOSTILE = "00-not-a-context"


class ObserverContract:
    """Subclass it, give it an `observer`, and run pytest."""

    @abstractmethod
    @pytest.fixture
    def observer(self) -> Observer:
        """Return a fresh observer."""

    def test_it_takes_every_metric(self, observer: Observer) -> None:
        for metric in ALL:
            labels = dict.fromkeys(metric.labels, "x")
            if metric.kind == "counter":
                observer.count(metric.name, 2, **labels)
            elif metric.kind == "gauge":
                observer.gauge(metric.name, 0.5, **labels)
            else:
                observer.record(metric.name, 0.1, 0.2, **labels)

    def test_it_never_raises_for_what_it_does_not_know(self, observer: Observer) -> None:
        observer.count("no_such_total", 0, color="red")
        observer.gauge("no_such", -1)
        observer.record("no_such_seconds")
        observer.count("outbox_published_total", nonsense="x")
        observer.gauge("outbox_published_total", 1)

    @pytest.mark.parametrize("name", ["publish", "process", "command", "no such operation"])
    def test_an_operation_runs_once_and_its_error_passes(
        self, observer: Observer, name: str
    ) -> None:
        message = MessageEnvelope(topic="orders", payload={}, metadata={"traceparent": _HOSTILE})
        runs = 0
        for messages in ([], [message], [message, message]):
            operation = Operation(name=name, messages=messages)
            with observer.observe(operation):
                runs += 1
                operation.outcome = "processed"
            with pytest.raises(KeyError, match="mine"), observer.observe(operation):
                raise KeyError("mine")
        assert 3 == runs

    def test_what_it_injects_may_be_sent(self, observer: Observer) -> None:
        """Metadata of others stay, and the message is valid with what was added."""
        metadata = {"correlation_id": "c-1", "traceparent": _HOSTILE}
        with observer.observe(Operation(name="command")):
            observer.inject(metadata, topic="orders", event_id="e-1")
        assert "c-1" == metadata["correlation_id"]
        MessageEnvelope(topic="orders", payload={}, metadata=metadata)
