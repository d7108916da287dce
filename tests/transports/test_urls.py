"""A bus by its URL."""

import sys

import pytest

from semel.errors import ConfigurationError
from semel.transports import bus_from_url
from semel.transports.memory import InMemoryMessageBus


def test_bus_from_url():
    """memory:// gives this bus, with its options."""
    bus = bus_from_url("memory://", source="shop")
    assert isinstance(bus, InMemoryMessageBus)
    assert bus.source == "shop"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("carrier-pigeon://user:s3cret@host", "no transport for 'carrier-pigeon://'.*kafka://"),
        ("user:s3cret@host", "no scheme.*kafka://"),
        ("", "no scheme"),
    ],
)
def test_unknown_url(url, text):
    """An unknown scheme is answered with the known ones, never with the password."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        bus_from_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("kafka://h", "kafka"),
        ("amqp://h", "rabbitmq"),
        ("amqps://h", "rabbitmq"),
        ("pulsar://h", "pulsar"),
        ("pulsar+ssl://h", "pulsar"),
        ("nats://h", "nats"),
        ("tls://h", "nats"),
        ("redis://h", "redis"),
        ("rediss://h", "redis"),
    ],
)
def test_missing_client(url, extra, monkeypatch):
    """A broker whose client is not installed is answered with the line that installs it."""
    monkeypatch.setitem(sys.modules, f"semel.transports.{extra}", None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'semel\[{extra}\]'"):
        bus_from_url(url)
