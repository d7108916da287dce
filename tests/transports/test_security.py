"""TLS and passwords, on servers that insist on both: right ones work, wrong ones harm nothing."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import pytest

from semel import SqlAlchemyStorage
from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import message
from semel.testing.reader import Reader
from semel.transports.kafka import KafkaMessageBus
from semel.transports.nats import NatsMessageBus
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.transports.redis import RedisMessageBus
from tests.scenarios.relaying import add, projector, row, running as relaying
from tests.transports.own_servers import OwnServer
from tests.transports.secure_servers import (
    HOST,
    PASSWORD,
    USER,
    Authority,
    SecureKafka,
    SecureRabbitMQ,
    open_folder,
    running,
)

WRONG = "wr0ng-password"
BROKERS = [
    pytest.param(name, marks=getattr(pytest.mark, name), id=name)
    for name in ("kafka", "rabbitmq", "redis", "nats")
]
TROUBLE = {
    "wrong password": ({"password": WRONG}, r"(?i)authenti|authoriz|access.?refused|wrongpass"),
    "untrusted certificate": ({"trusted": False}, r"(?i)certificate"),
    "wrong host name": ({"host": "127.0.0.1"}, r"(?i)certificate|hostname"),
}

MakeBus = Callable[..., object]


@pytest.fixture(scope="module")
def folder():
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def authority(folder) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def stranger(folder) -> Authority:
    return Authority(folder, "theirs")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.certify(HOST)


@pytest.fixture(scope="module")
def kafka_port(folder, certificate):
    SecureKafka.certificate = certificate
    with running(SecureKafka, folder) as server:
        yield server.port("secure")


@pytest.fixture(scope="module")
def rabbitmq_port(folder, certificate):
    SecureRabbitMQ.certificate = certificate
    with running(SecureRabbitMQ, folder) as server:
        yield server.port("secure")


@pytest.fixture
async def redis_port(certificate, tmp_path):
    chain, key = map(str, certificate)
    options = ("--port", "0", "--tls-port", "{port}", "--tls-auth-clients", "no")
    files = ("--tls-cert-file", chain, "--tls-key-file", key, "--tls-ca-cert-file", chain)
    login = ("--user", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all", "--user", "default", "off")
    async with OwnServer("redis-server", tmp_path, *options, *files, *login) as server:
        yield server.port


@pytest.fixture
async def nats_port(certificate, tmp_path):
    chain, key = map(str, certificate)
    options = ("--tls", "--tlscert", chain, "--tlskey", key, "--user", USER, "--pass", PASSWORD)
    async with OwnServer("nats-server", tmp_path, *options) as server:
        yield server.port


@pytest.fixture
def secure(request, service, authority, stranger) -> MakeBus:
    """Make a bus for the broker of the test, with something wrong if told."""
    broker = request.param
    service(broker)
    port = request.getfixturevalue(f"{broker}_port")

    def make(*, host: str = HOST, password: str = PASSWORD, trusted: bool = True) -> object:
        trust = authority if trusted else stranger
        login = f"{USER}:{password}@{host}:{port}"
        if broker == "kafka":
            settings = {
                "bootstrap.servers": f"{host}:{port}",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": password,
                "ssl.ca.location": str(trust.file),
            }
            return KafkaMessageBus(settings, timeout_seconds=2)
        if broker == "rabbitmq":
            # The user that scripts/servers make.
            login = f"semel:{'semel' if password == PASSWORD else password}@{host}:{port}"
            return RabbitMQMessageBus(f"amqps://{login}/", ssl_context=trust.context())
        if broker == "redis":
            return RedisMessageBus(
                f"rediss://{login}", options={"ssl_ca_certs": str(trust.file)}, timeout_seconds=3
            )
        return NatsMessageBus(f"tls://{login}", options={"tls": trust.context()})

    return make


@asynccontextmanager
async def bus_closed(bus):
    """Close it, without having started it."""
    try:
        yield bus
    finally:
        await bus.close()


@pytest.mark.parametrize("secure", BROKERS, indirect=True)
async def test_right(secure):
    """With the right password and a certificate that is trusted, messages go and come."""
    topic = f"orders-{uuid4().hex}"
    async with secure() as bus:
        if isinstance(bus, KafkaMessageBus):
            await bus.declare(topic)
        async with Reader(await bus.subscribe(topic, group="group"), patience_seconds=30) as reader:
            sent = message(topic, key="k")
            await bus.publish(sent)
            (received,) = await reader.messages(1)
    assert sent.event_id == received.event_id


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("secure", BROKERS, indirect=True)
async def test_wrong(secure, trouble, caplog):
    """Nothing is sent; it is the destination's trouble; the password is told nowhere."""
    caplog.set_level(logging.DEBUG)
    options, words = TROUBLE[trouble]
    async with bus_closed(secure(**options)) as bus:
        with pytest.raises(PublishError, match=words) as caught:
            await bus.publish(message("orders"))
        assert "destination" == caught.value.kind
        with pytest.raises(BusError) as unanswered:
            await bus.ping()
        with suppress(BusError):
            assert not (await bus.subscribe("orders", group="group")).is_connected()
    told = f"{caught.value}{unanswered.value}{bus!r}{caplog.text}"
    assert WRONG not in told
    assert PASSWORD not in told


@pytest.mark.parametrize("secure", BROKERS, indirect=True)
async def test_wrong_password_costs_no_attempt(secure, sqlite, monkeypatch):
    """Promise 3: the relay waits; no event loses an attempt, and none becomes DEAD."""
    bus = secure(password=WRONG)
    probed = asyncio.Event()

    async def ping() -> None:
        try:
            await type(bus).ping(bus)
        finally:
            probed.set()

    monkeypatch.setattr(bus, "ping", ping)
    async with SqlAlchemyStorage(sqlite.url) as storage, bus_closed(bus):
        await storage.initialize()
        await add(storage, "e1", topic="orders")
        async with relaying(projector(storage, bus, max_retry_attempts=1)):
            async with asyncio.timeout(60):
                await probed.wait()
        found = await row(storage, "e1")
    assert found.status in ("NEW", "PUBLISHING")
    assert 0 == found.retry_count
