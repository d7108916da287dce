"""Confirms and returns of AMQP, without a server."""

import asyncio
from pathlib import Path

import aiormq
import pytest
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from semel.transports.amqp import BatchChannel, supports_batches
from semel.transports.amqp_single import SingleChannel, is_blocked
from semel.transports.rabbitmq_errors import ERRORS
from tests.transports.amqp_tools import outgoing, unmarshal

# Confirms


class FakeConnection:
    def __init__(self):
        self.write_queue = asyncio.Queue(maxsize=10)
        self.connection_tune = spec.Connection.Tune(0, 131072, 0)
        self.unblocked = asyncio.Event()
        self.unblocked.set()

    async def ready(self):
        await self.unblocked.wait()


class FakeChannel:
    number = 7
    is_closed = False

    def __init__(self):
        self.connection = FakeConnection()
        self.frames = asyncio.Queue()
        self.closing = asyncio.get_running_loop().create_future()

    async def close(self):
        self.closing.cancel()

    async def say(self, *frames):
        for frame in frames:
            await self.frames.put((0, frame))

    async def written(self, count):
        """Wait until *count* messages are written, and return the methods."""
        methods = []
        while len(methods) < count:
            payload = (await self.connection.write_queue.get()).payload
            methods += [f for f in unmarshal(payload) if isinstance(f, spec.Basic.Publish)]
        return methods


@pytest.fixture
async def fake():
    return FakeChannel()


def batch_channel(fake, **options):
    values = {"window": 4000, "window_bytes": 1_000_000, "confirm_seconds": 30.0}
    return BatchChannel(fake, **values | {"unroutable": "destination"} | options)


def ack(tag, *, multiple=False):
    return spec.Basic.Ack(tag, multiple)


def nack(tag, *, multiple=False):
    return spec.Basic.Nack(tag, multiple)


def returned(message):
    return (
        spec.Basic.Return(312, "NO_ROUTE", message.exchange, message.routing_key),
        ContentHeader(0, len(message.body), message.properties()),
        ContentBody(message.body),
    )


def kinds(results):
    return [result and result.kind for result in results]


async def start(channel, fake, messages):
    task = asyncio.create_task(channel.publish(messages))
    await fake.written(len(messages))
    return task


async def test_acks_in_any_order(fake):
    """Single and multiple acks, in any order and overlapping, confirm each message once."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing(n) for n in range(6)])
    await fake.say(ack(5), ack(2), ack(3, multiple=True), ack(4))
    await asyncio.sleep(0)
    assert not task.done()
    await fake.say(ack(6))
    assert [None] * 6 == await task
    assert channel.is_idle


async def test_nack_and_silence(fake):
    """Acked, nacked and unanswered messages of one batch have their own outcomes."""
    channel = batch_channel(fake, confirm_seconds=0.2)
    task = await start(channel, fake, [outgoing(n) for n in range(10)])
    await fake.say(ack(4, multiple=True), nack(5))
    assert [None] * 4 + ["transient"] + ["unknown"] * 5 == kinds(await task)
    assert channel.is_stuck
    assert not channel.is_open


async def test_multiple_nack(fake):
    """A nack of several messages leaves alone what was acked before."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing(n) for n in range(4)])
    await fake.say(ack(2), nack(3, multiple=True), ack(4))
    assert ["transient", None, "transient", None] == kinds(await task)


async def test_return_is_no_success(fake):
    """A returned message has failed although its ack follows; the others have not."""
    channel = batch_channel(fake)
    messages = [outgoing(n) for n in range(3)]
    task = await start(channel, fake, messages)
    await fake.say(*returned(messages[1]), ack(3, multiple=True))
    assert [None, "destination", None] == kinds(await task)


async def test_same_id_twice(fake):
    """Of two messages with one id the one with the returned routing key has failed."""
    channel = batch_channel(fake)
    messages = [outgoing(1), outgoing(1, routing_key="nowhere"), outgoing(1, routing_key="nowhere")]
    task = await start(channel, fake, messages)
    await fake.say(*returned(messages[1]), *returned(messages[2]), ack(3, multiple=True))
    assert [None, "destination", "destination"] == kinds(await task)


async def test_unknown_return(fake):
    """If the returned message cannot be found, nothing is taken for confirmed."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing(n) for n in range(2)])
    await fake.say(*returned(outgoing(99)), ack(2, multiple=True))
    assert ["unknown", "unknown"] == kinds(await task)
    assert not channel.is_open


async def test_accepts_unroutable(fake):
    """On request messages are not mandatory."""
    channel = batch_channel(fake, unroutable=None)
    task = asyncio.create_task(channel.publish([outgoing()]))
    (method,) = await fake.written(1)
    assert not method.mandatory
    await fake.say(ack(1))
    assert [None] == await task


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (404, "NOT_FOUND - no exchange 'orders' in vhost '/'", "destination"),
        (403, "ACCESS_REFUSED - write access refused", "destination"),
        (406, "PRECONDITION_FAILED - something else", "unknown"),
        (541, "INTERNAL_ERROR", "unknown"),
    ],
)
async def test_channel_closed_by_broker(fake, code, text, kind):
    """What waits when the broker closes the channel has the class of the reason."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing(n) for n in range(3)])
    await fake.say(ack(1), spec.Channel.Close(code, text, 60, 40))
    results = await task
    assert [None, kind, kind] == kinds(results)
    assert str(code) in str(results[1])
    assert ["destination"] == kinds(await channel.publish([outgoing()]))


async def test_too_large_for_the_broker(fake):
    """The one message that is too large is refused for good; the limit is known from then on."""
    channel = batch_channel(fake)
    messages = [outgoing(1), outgoing(2, body=b"x" * 200), outgoing(3)]
    task = await start(channel, fake, messages)
    text = "PRECONDITION_FAILED - message size 200 is larger than configured max size 100"
    await fake.say(spec.Channel.Close(406, text, 60, 40))
    assert ["unknown", "permanent", "unknown"] == kinds(await task)
    assert channel.too_large == 100


async def test_lost_connection(fake):
    """What waits when the connection is lost is unknown, what was confirmed is not."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing(n) for n in range(3)])
    await fake.say(ack(1))
    fake.closing.set_exception(ConnectionResetError("amqp://user:s3cret@host"))
    results = await task
    assert [None, "unknown", "unknown"] == kinds(results)
    assert "s3cret" not in str(results[1])


async def test_window(fake):
    """No more than the window waits for confirms, and an ack makes room."""
    channel = batch_channel(fake, window=500)
    task = asyncio.create_task(channel.publish([outgoing(n) for n in range(700)]))
    await fake.written(500)
    await asyncio.sleep(0.05)
    assert fake.connection.write_queue.empty()
    await fake.say(ack(500, multiple=True))
    await fake.written(200)
    await fake.say(ack(700, multiple=True))
    assert [None] * 700 == await task


async def test_window_of_bytes(fake):
    """Large messages fill the window by their bytes, and one larger than it goes alone."""
    channel = batch_channel(fake, window_bytes=300_000)
    messages = [outgoing(n, body=b"x" * 400_000) for n in range(2)]
    task = asyncio.create_task(channel.publish(messages))
    await fake.written(1)
    await asyncio.sleep(0.05)
    assert fake.connection.write_queue.empty()
    await fake.say(ack(1))
    await fake.written(1)
    await fake.say(ack(2))
    assert [None, None] == await task


async def test_blocked(fake):
    """What was written when the broker blocked is unknown; more is not written."""
    channel = batch_channel(fake)
    task = await start(channel, fake, [outgoing()])
    fake.connection.unblocked.clear()
    assert await is_blocked(fake.connection)
    assert ["unknown"] == kinds(await task)
    assert ["destination"] == kinds(await channel.publish([outgoing()]))
    assert fake.connection.write_queue.empty()
    fake.connection.unblocked.set()
    task = await start(channel, fake, [outgoing()])
    await fake.say(ack(2, multiple=True))
    assert [None] == await task


async def test_cancelled_while_the_writer_is_busy(fake):
    """A cancelled call that has not been written leaves no gap in the numbering of confirms."""
    channel = batch_channel(fake)
    queue = fake.connection.write_queue
    while not queue.full():
        queue.put_nowait(None)
    stuck = asyncio.create_task(channel.publish([outgoing(1)]))
    await asyncio.sleep(0.01)
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)
    while not queue.empty():
        queue.get_nowait()
    task = await start(channel, fake, [outgoing(2)])
    await fake.say(ack(1))
    assert [None] == await task


async def test_unencodable_message_fails_alone(fake):
    """A message whose headers do not fit into a frame is refused; those around it are sent."""
    fake.connection.connection_tune.frame_max = 4096
    channel = batch_channel(fake)
    messages = [outgoing(1), outgoing(2, headers={"h": "x" * 5000}), outgoing(3)]
    task = asyncio.create_task(channel.publish(messages))
    await fake.written(2)
    await fake.say(ack(2, multiple=True))
    assert [None, "permanent", None] == kinds(await task)


async def test_other_frames_are_left_to_aiormq(fake):
    """Only confirms and returns are taken out of the channel's frames."""
    batch_channel(fake)
    await fake.say(ack(1), spec.Channel.FlowOk(True), spec.Channel.Close(200, "bye", 0, 0))
    assert isinstance((await fake.frames.get())[1], spec.Channel.FlowOk)
    assert isinstance((await fake.frames.get())[1], spec.Channel.Close)


# The attributes of aiormq


async def test_aiormq_has_what_batches_need():
    """Aiormq still has the attributes that batches rest on: if this fails, see `amqp.py`."""
    connection = aiormq.Connection("amqp://nobody@127.0.0.1:1")
    connection.connection_tune = spec.Connection.Tune(0, 131072, 0)
    connection.server_properties = {"capabilities": {"publisher_confirms": True}}
    channel = aiormq.Channel(connection, 1)
    assert supports_batches(channel)
    assert channel.write_queue is channel.connection.write_queue
    await channel.close()


@pytest.mark.parametrize("missing", ["frames", "write_queue"])
async def test_without_them_it_falls_back(fake, missing):
    """An aiormq that lacks one of them is noticed before anything is published."""
    setattr(fake if missing == "frames" else fake.connection, missing, None)
    assert not supports_batches(fake)


class DocumentedChannel(FakeChannel):
    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.published = []

    async def basic_publish(self, body, *, properties, **options):
        self.published.append((properties.message_id, options["mandatory"]))
        answer = self.answers.get(properties.message_id)
        if answer is not None:
            raise answer


async def test_fallback_outcomes():
    """The slow way tells returned, nacked and lost messages apart as well."""
    frame = spec.Basic.Return(312, "NO_ROUTE", "orders", "x")
    message = aiormq.abc.DeliveredMessage(frame, ContentHeader(), b"", None)
    fake = DocumentedChannel(
        {
            "m2": aiormq.exceptions.PublishError(message, frame),
            "m3": aiormq.exceptions.DeliveryError(None, nack(3)),
            "m4": ConnectionResetError(),
            "m5": TimeoutError(),
        }
    )
    channel = SingleChannel(fake, confirm_seconds=1.0, unroutable="destination")
    results = await channel.publish([outgoing(n) for n in range(1, 6)])
    assert [None, "destination", "transient", "unknown", "unknown"] == kinds(results)
    assert [(f"m{n}", True) for n in range(1, 6)] == fake.published


# The documentation


def test_errors_are_documented():
    """The page has every row of the table of errors, and no other."""
    page = Path(__file__).parents[2] / "docs/transports/rabbitmq.md"
    section = page.read_text().partition("## Errors")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert rows == [f"| {name} | {kind} | {text} |" for name, (kind, text) in ERRORS.items()]
