"""The child processes: an API service, a relay, a consumer."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn

from semel import (
    Hub,
    MessageEnvelope,
    OutboxProjectorConfig,
    RetryPolicy,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
    bus_from_url,
)
from semel.clock import SystemClock
from tests.chaos.bus import ShakyBus
from tests.chaos.plan import BATCH, CONCURRENCY, GROUPS, LEASE, TOPICS, TROUBLE, History, Post
from tests.chaos.service import create_app
from tests.chaos.tables import Effect, committed, digest

CONFIG = OutboxProjectorConfig(
    batch_size=BATCH,
    concurrency=CONCURRENCY,
    lease_seconds=LEASE,
    publish_timeout_seconds=5,
    breaker_max_seconds=1,
    sweep_seconds=3,
    sleep_idle=0.5,
    retry_base_seconds=0.1,
    retry_max_seconds=1,
)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # children of the fork server inherit that
RETRY = RetryPolicy(max_attempts=10, base_seconds=0.05, max_seconds=0.3)


def work(post: Post) -> None:
    """Be the process that *post* describes, until a signal."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # never outlive the harness
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(post.folder / f"{post.name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    form = f"%(asctime)s {post.proc} %(name)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, force=True)
    _set_clock(post)
    history = History(post.folder, post.name, post.proc)
    asyncio.run(_main(post, history))


def _set_clock(post: Post) -> None:
    """Let semel believe in another time, which may also run faster."""
    if not post.clock_offset and post.clock_speed == 1:
        return
    began, now, monotonic = time.monotonic(), SystemClock.now, SystemClock.monotonic

    def ahead() -> float:
        return post.clock_offset + (post.clock_speed - 1) * (time.monotonic() - began)

    SystemClock.now = lambda self: now(self) + timedelta(seconds=ahead())  # type: ignore[method-assign]
    SystemClock.monotonic = lambda self: monotonic(self) + abs(ahead())  # type: ignore[method-assign]


async def _main(post: Post, history: History) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(
        signal.SIGUSR1, lambda: history.write("info", "resources", value=_use())
    )
    history.write("info", "started")
    await ROLES[post.role](post, history)
    history.write("info", "stopped")


def _use() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "fds": len([*Path("/proc/self/fd").iterdir()]),
        "tasks": len(asyncio.all_tasks()),
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
    }


async def _serve(post: Post, history: History) -> None:
    hub = Hub("bank", storage=SqlAlchemyStorage(post.db1))
    config = uvicorn.Config(
        create_app(hub, post.seed),
        host="127.0.0.1",
        port=post.port,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    history.write("info", "ready")
    await uvicorn.Server(config).serve()
    await hub.storage.close()


async def _relay(post: Post, history: History) -> None:
    hubs = []
    for name, url in (("bank", post.db1), ("desk", post.db2)):
        bus: Any = ShakyBus(make_bus(post, source=name), post, history)
        storage = SqlAlchemyStorage(url)
        _watch(storage, history)
        hubs.append(Hub(name, storage=storage, bus=bus, config=CONFIG))
    await _run(history, *hubs, projector=True)


def _watch(storage: SqlAlchemyStorage, history: History) -> None:
    """Write down under which epoch a failure was stored; a trigger knows that of the lease."""
    fail = storage.relay.fail

    async def watched(instance: Any, epochs: Any, failures: Any) -> Any:
        written = await fail(instance, epochs, failures)
        marks = [
            [each.entry.envelope.event_id, each.attempts, epochs[each.entry.partition]]
            for each in failures
            if each.entry.sequence in written
        ]
        history.write("ok", "mark", value=marks)
        return written

    storage.relay.fail = watched  # type: ignore[method-assign]


async def _consume(post: Post, history: History) -> None:
    hubs = []
    for group in GROUPS:
        hub = Hub(group, storage=SqlAlchemyStorage(post.db2), bus=make_bus(post, source=group))
        for topic in TOPICS:
            hub.consumer(topic, retry=RETRY, concurrency=4, prefetch=40)
        _subscribe(hub, post, history)
        hubs.append(hub)
    await _run(history, *hubs, projector=False)


def make_bus(post: Post, **options: Any) -> Any:
    return bus_from_url(post.bus, **post.bus_options, **options)


async def _run(history: History, *hubs: Hub, projector: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        for hub in hubs:
            await stack.enter_async_context(hub.running(projector=projector))
        history.write("info", "ready")
        await stop.wait()


def _subscribe(hub: Hub, post: Post, history: History) -> None:
    group, flaky = hub.name, set[str]()

    def note(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> dict[str, Any]:
        payload = dict(message.payload)
        about = {"group": group, "id": message.event_id, "version": payload["version"]}
        history.write("invoke", "deliver", payload["key"], about)
        uow.session.add(
            Effect(
                group=group,
                tenant=message.tenant_id,
                id=message.event_id,
                key=payload["key"],
                version=payload["version"],
                sha256=digest(payload),
                t=time.monotonic(),
            )
        )
        return payload

    async def append(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        note(message, uow)
        if int(message.event_id[-1], 16) == 0 and message.event_id not in flaky:
            flaky.add(message.event_id)
            await uow.session.flush()
            raise RuntimeError("once in a while a handler fails at first")

    async def poison(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        note(message, uow)
        if (post.folder / TROUBLE).exists():
            raise RuntimeError("this one fails, as long as there is trouble")

    async def transferred(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        payload = note(message, uow)
        if group == GROUPS[0]:
            receipt = {"key": f"receipt-{payload['key']}", "version": payload["version"]}
            record = await uow.outbox.add(
                "receipts", receipt, event_type="Receipted", key=receipt["key"]
            )
            uow.session.add(committed(record.id, record.tenant_id, receipt, message.event_id))

    async def receipted(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        note(message, uow)

    for kind, handler in (("Appended", append), ("Refused", receipted), ("Poison", poison)):
        hub.on("entries", kind)(handler)
    hub.on("transfers", "Transferred")(transferred)
    hub.on("receipts", "Receipted")(receipted)


ROLES = {"api": _serve, "relay": _relay, "consumer": _consume}
