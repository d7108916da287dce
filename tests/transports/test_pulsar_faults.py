"""Pulsar in trouble: unreachable, killed and restarted, a consumer that dies; and its errors."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pulsar
import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import ids, message
from semel.testing.reader import Reader
from semel.transports import pulsar as transport
from semel.transports.base import Outcomes
from semel.transports.pulsar import PulsarMessageBus
from semel.transports.pulsar_producer import ERRORS, OTHER_ERRORS, Flight, Sender, kind_of
from semel.wire import decode
from tests.proxy import Proxy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/transports/pulsar.md"


@pytest.fixture
def topic() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def closed_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_nobody_there(closed_port, topic):
    """Without a broker nothing is sent, and it is the destination's fault."""
    url = f"pulsar://127.0.0.1:{closed_port}"
    async with PulsarMessageBus(url, timeout_seconds=1) as bus:
        results = await bus.publish_many([message(topic, key="k"), message(topic)])
        assert ["destination", "destination"] == [r.kind for r in results]
        with pytest.raises(PublishError) as caught:
            await bus.publish(message(topic))
        assert "destination" == caught.value.kind
        with pytest.raises(BusError, match="does not answer"):
            await bus.ping()
        with pytest.raises(BusError, match="cannot subscribe"):
            await bus.subscribe(topic, group="g")


@pytest.mark.pulsar
async def test_unknown_namespace(service, topic):
    """A namespace that does not exist is the destination's fault, not the message's."""
    url, name = service("pulsar"), f"no-{uuid4().hex}"
    async with PulsarMessageBus(url, namespace=name, timeout_seconds=3) as bus:
        results = await bus.publish_many([message(topic)])
    assert "destination" == results[0].kind


@pytest.mark.pulsar
async def test_too_large(service, topic):
    """A message beyond the broker's limit is refused for good, alone, and sends nothing."""
    large = message(topic, body=b"x" * (5 * 1024 * 1024 + 1), content_type="text/plain")
    small = message(topic)
    async with PulsarMessageBus(service("pulsar")) as bus:
        results = await bus.publish_many([large, small])
        assert ["permanent", None] == [r and r.kind for r in results]
        async with Reader(await bus.subscribe(topic, group="g")) as reader:
            assert [small.event_id] == ids(await reader.messages(1))


class SlowProxy(Proxy):
    """Holds back what clients send from their third request on, until `released`."""

    async def _forward(self, reader, writer, back, *, upstream):
        proxy, pieces = self, 0

        class Held:
            async def read(self, size: int) -> bytes:
                nonlocal pieces
                data = await reader.read(size)
                pieces += 1
                if pieces > 2:
                    await proxy.released.wait()
                return data

        await super()._forward(Held() if upstream else reader, writer, back, upstream=upstream)


@pytest.mark.pulsar
@pytest.mark.parametrize("lent", [False, True])
async def test_subscription_that_comes_too_late(service, topic, lent, monkeypatch):
    """A consumer that the broker makes after we gave up takes no messages from the others."""
    monkeypatch.setattr(transport, "_GRACE_SECONDS", 0.5)
    patient = {"operation_timeout_seconds": 20}
    async with SlowProxy.before(service("pulsar")) as proxy:
        proxy.released = asyncio.Event()
        client = pulsar.Client(proxy.url, **patient) if lent else None
        server, options = (client, None) if lent else (proxy.url, patient)
        async with (
            PulsarMessageBus(server, timeout_seconds=0.5, client_options=options) as late,
            PulsarMessageBus(service("pulsar")) as bus,
        ):
            with pytest.raises(BusError, match="Timeout"):
                await late.subscribe(topic, group="g")
            proxy.released.set()
            sent = [message(topic, key=f"k{n}") for n in range(50)]
            async with Reader(await bus.subscribe(topic, group="g")) as reader:
                await asyncio.sleep(1)  # in which the other one comes, and goes
                assert not any(await bus.publish_many(sent))
                assert set(ids(sent)) == set(ids(await reader.messages(50)))
        if client is not None:
            await asyncio.to_thread(client.close)


CONSUMER = """
import asyncio, sys
from semel.transports.pulsar import PulsarMessageBus

async def main():
    bus = PulsarMessageBus(sys.argv[1])
    deliveries = await bus.subscribe(sys.argv[2], group="g")
    count = 0
    async for delivery in deliveries:
        count += 1
        if count == 3:
            print("holding", flush=True)

asyncio.run(main())
"""


@pytest.mark.pulsar
async def test_killed_consumer(service, topic):
    """What a process held when it was killed comes to another one, in order."""
    url = service("pulsar")
    sent = [message(topic, key="k", payload=n) for n in range(5)]
    async with PulsarMessageBus(url) as bus:
        await bus.publish_many(sent)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CONSUMER, url, topic),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(30):
                assert b"holding\n" == await process.stdout.readline()
            subscription = await bus.subscribe(topic, group="g")
            async with Reader(subscription, patience_seconds=30) as reader:
                assert await reader.silent(0.3)
                process.send_signal(signal.SIGKILL)
                again = await reader.take(5)
                assert ids(sent) == ids(decode(delivery.wire) for delivery in again)
                assert {2} == {delivery.attempt for delivery in again}
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def services(command: str) -> None:
    # Without the URL in the environment: with it the server is somebody else's.
    environment = {k: v for k, v in os.environ.items() if k != "SEMEL_TEST_PULSAR_URL"}
    subprocess.run(
        [ROOT / "scripts/services", command, "pulsar"],
        env=environment,
        check=True,
        capture_output=True,
        timeout=170,
    )


@pytest.fixture
def broker(service):
    """A broker that may be killed: only one that scripts/services started."""
    url = service("pulsar")
    environment = {k: v for k, v in os.environ.items() if k != "SEMEL_TEST_PULSAR_URL"}
    command = [ROOT / "scripts/services", "env", "pulsar"]
    ours = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if url not in ours.stdout:
        pytest.skip("this Pulsar was not started by scripts/services")
    yield url
    services("start")


@pytest.mark.pulsar
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_broker(broker, topic, capsys):
    """A broker killed with SIGKILL and restarted loses nothing, and keys stay in order.

    Messages are published, consumed and held all the while.
    """
    sent: list[MessageEnvelope] = []
    seen: list[MessageEnvelope] = []
    failures: list[str] = []
    killed, stop = asyncio.Event(), asyncio.Event()

    async def produce(bus: PulsarMessageBus) -> None:
        while not stop.is_set():
            start = len(sent)
            batch = [message(topic, key=f"k{n % 5}", payload=start + n) for n in range(50)]
            sent.extend(batch)
            while batch:
                results = await bus.publish_many(batch)
                failures.extend(r.kind for r in results if r is not None)
                batch = [m for m, r in zip(batch, results, strict=True) if r is not None]
            await asyncio.sleep(
                0.1
            )  # the pace of a service; a fast one would only make this longer

    async def consume(bus: PulsarMessageBus) -> None:
        deliveries = await bus.subscribe(topic, group="g")
        held = None
        async for delivery in deliveries:
            seen.append(decode(delivery.wire))
            if held is None:
                held = delivery  # across the crash
                continue
            try:
                await delivery.ack()
                if killed.is_set() and held is not delivery:
                    await held.ack()
                    held = delivery
            except BusError:
                continue  # it comes again

    async with (
        PulsarMessageBus(broker, timeout_seconds=5) as outgoing,
        PulsarMessageBus(broker, timeout_seconds=5) as incoming,
    ):
        tasks = [asyncio.create_task(produce(outgoing)), asyncio.create_task(consume(incoming))]
        await _until(lambda: len(seen) >= 200, tasks)
        await asyncio.to_thread(services, "kill")
        killed.set()
        before = len(seen)
        await asyncio.to_thread(services, "start")
        await _until(lambda: len(seen) >= before + 300, tasks)
        stop.set()
        await tasks[0]
        wanted = {m.event_id for m in sent}
        await _until(lambda: wanted <= {m.event_id for m in seen}, tasks[1:])
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    firsts = list({m.event_id: m for m in seen}.values())
    for key in {m.key for m in sent}:
        expected = [m.payload for m in sent if m.key == key]
        assert expected == [m.payload for m in firsts if m.key == key]
    assert not {"permanent"} & set(failures)
    with capsys.disabled():
        print(
            f"\npulsar killed and restarted: {len(sent)} sent, {len(seen) - len(firsts)} came "
            f"twice, {len(failures)} failures on the way, none lost, order kept"
        )


async def _until(condition, tasks) -> None:
    async with asyncio.timeout(100):
        while not condition():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)


# What the client's answers mean


def test_table_in_the_docs():
    """The page shows the table of the code, row by row."""
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert ERRORS == dict(rows)
    assert f"Anything else is *{OTHER_ERRORS}*" in PAGE.read_text()


def test_table_names_exist():
    """Every name of the table is a result of the client."""
    assert set(ERRORS) <= set(pulsar.Result.__members__)


def test_other_errors():
    """A result that the table does not name may have been written."""
    assert "unknown" == kind_of("SomethingNew")


class _Script:
    """A producer that answers as it is told, as the client does: later and in its own order."""

    def __init__(self, answers: dict[bytes, pulsar.Result], late: list) -> None:
        self.answers = answers
        self.late = late
        self.sent: list[bytes] = []

    def send_async(self, content, callback, **_):
        self.sent.append(content)
        if (result := self.answers.get(content, pulsar.Result.Ok)) is not None:
            self.late.append((callback, result))


async def fly(answers: dict[bytes, pulsar.Result | None], count: int, *, seconds: float = 5):
    bus = PulsarMessageBus("pulsar://localhost:6650")
    messages = [message("t", key="k", body=b"%d" % n) for n in range(count)]
    outcomes = Outcomes(messages)
    flight = Flight([(n, bus.encode(m)) for n, m in enumerate(messages)], outcomes)
    producer = _Script(answers, late := [])
    await flight.send({"t": Sender(producer)})
    await asyncio.to_thread(lambda: [callback(result, None) for callback, result in late])
    await flight.land(seconds)
    return outcomes.results, flight, producer


async def test_confirmed_after_a_failure(caplog):
    """A message that arrived behind a failed one of its key does not count as sent."""
    results, _, _ = await fly({b"1": pulsar.Result.Timeout}, 3)
    assert [None, "unknown", "unknown"] == [r and r.kind for r in results]
    assert results[1] is results[2]
    assert "although an earlier one of its key failed" in caplog.text


async def test_no_answer_is_unknown():
    """What the client never answers may have arrived, and its producer is given up."""
    results, flight, _ = await fly({b"1": None}, 2, seconds=0.05)
    assert [None, "unknown"] == [r and r.kind for r in results]
    assert {"t"} == flight.spent


@pytest.mark.parametrize("result", [pulsar.Result.AlreadyClosed, pulsar.Result.TopicTerminated])
async def test_spent_producer(result):
    """A producer that cannot send any more is replaced."""
    results, flight, _ = await fly({b"0": result}, 1)
    assert ERRORS[result.name] == results[0].kind
    assert {"t"} == flight.spent
