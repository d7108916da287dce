"""What the tests of the RabbitMQ bus share: fixtures, helpers, and a node of their own."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest

from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import ids, message
from semel.testing.reader import Reader
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.wire import decode
from tests.services import service_url

ROOT = Path(__file__).parents[2]
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")


class Node:
    """A RabbitMQ that belongs to these tests: nobody else minds when it dies."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "SEMEL_SERVICES_DIR": str(folder)}
        self.environment.pop("SEMEL_TEST_RABBITMQ_URL", None)

    @property
    def state(self):
        return json.loads((self.folder / "rabbitmq" / "state.json").read_text())

    @property
    def url(self):
        return f"amqp://semel:semel@127.0.0.1:{self.state['ports']['main']}"

    def url_of(self, user, password, vhost=""):
        return self.url.replace("semel:semel", f"{user}:{password}") + f"/{vhost}"

    def services(self, command):
        return subprocess.run(
            [ROOT / "scripts/services", command, "rabbitmq"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def control(self, *arguments):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "rabbitmq"),
            "ERL_EPMD_PORT": str(self.state["ports"]["epmd"]),
            "RABBITMQ_NODENAME": "semel@localhost",
        }
        command = [CONTROL, "--quiet", *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)


@pytest.fixture(name="node", scope="module")
def a_node():
    service_url("rabbitmq")  # without any server the tests are skipped, or fail in CI
    if not CONTROL.exists():
        pytest.skip("needs a RabbitMQ that is installed here, to kill it")
    folder = Path(tempfile.mkdtemp(prefix="semel-rabbitmq-", dir="/var/tmp"))
    folder.chmod(0o755)  # the server has a user of its own
    node = Node(folder)
    try:
        done = node.services("up")
        assert 0 == done.returncode, done.stderr
        yield node
    finally:
        node.services("down")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(name="admin")
async def an_admin(service):
    """A plain aio-pika connection, beside the bus."""
    connection = await aio_pika.connect(service("rabbitmq"))
    yield connection
    await connection.close()


@pytest.fixture(name="topic")
async def a_topic(admin):
    """A name whose exchanges and queues are gone afterwards."""
    name = f"contract-{uuid4().hex}"
    yield name
    await forget(admin, name, f"{name}-other")


async def forget(admin, *topics):
    channel = await admin.channel()
    for name in topics:
        for group in ("group", "first", "second"):
            for queue in (f"{name}.{group}", f"{name}.{group}.dead"):
                await channel.queue_delete(queue)
        await channel.exchange_delete(name)


@pytest.fixture(name="bus")
async def a_bus(service):
    async with RabbitMQMessageBus(service("rabbitmq")) as bus:
        yield bus


async def read(bus, topic, group="group", prefetch=100):
    return Reader(await bus.subscribe(topic, group=group, prefetch=prefetch))


def keyed(topic, count, key="k", **fields):
    return [
        message(topic, key=key, event_id=f"{key}-{n}", payload=n, **fields) for n in range(count)
    ]


async def everything(reader, wanted):
    """Read until each of the wanted ids has come."""
    found = []
    while wanted:
        found += await reader.messages(1)
        wanted.discard(found[-1].event_id)
    return found


def kinds(results):
    return [result and result.kind for result in results]


async def publish_all(bus, messages, *, seen=None):
    """Publish as a relay does: what is not confirmed is sent again, each key in order."""
    waiting = list(messages)
    async with asyncio.timeout(90):
        while waiting:
            try:
                results = await bus.publish_many(waiting)
            except BusError:
                results = [PublishError("escaped", kind="destination")] * len(waiting)
            if seen is not None:
                seen.update(kinds(results))
            waiting = [m for m, error in zip(waiting, results, strict=True) if error is not None]
            if waiting:
                await asyncio.sleep(0.1)  # the relay's breaker


async def collect(reader, wanted):
    """Read until each of the wanted messages has been acked."""
    acked, found = set(), []
    while not (expected := wanted()) or not acked.issuperset(ids(expected)):
        (delivery,) = await reader.take()
        received = decode(delivery.wire)
        found.append(received)
        with suppress(BusError):  # not acked: it comes again
            await delivery.ack()
            acked.add(received.event_id)
    return found
