"""Every other command: what it does, what it prints, how it ends."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from semel.idempotency.keys import scoped_key
from semel.inbox import ConsumerInbox
from semel.operations import AuditFilter
from semel.states import Answer
from semel.testing.contracts.rows import add, bury, instance, send
from tests.cli.conftest import Cli, both

pytestmark = both


async def handled(storage, *message_ids: str) -> None:
    inbox = ConsumerInbox(storage, consumer_name="billing")
    for message_id in message_ids:
        await inbox.process_idempotent(message_id, "orders", "OrderPlaced", {}, lambda _: None)


def test_status_is_one_screen(cli: Cli) -> None:
    """Backlog, age, dead, blocked keys, pauses, projectors with leases, consumers."""

    async def work(storage) -> None:
        made = await add(storage, "orders", "orders", key="k")
        await bury(storage, made[0])
        await handled(storage, "m-1")
        await storage.outbox.pause(topic="orders", reason="audit")
        projector = instance("one", detail={"host": "h", "pid": 1})
        await storage.relay.heartbeat(projector)
        await storage.relay.claim(projector, 10)

    cli.do(work)
    shape = cli.json("status")
    assert {
        *("backlog", "published_per_second", "outbox", "blocked_keys", "pauses", "workers"),
        *("leases", "breakers", "consumers"),
    } == set(shape)
    assert (1, 1) == (shape["backlog"], shape["outbox"]["counts"]["DEAD"])
    assert {"held": 10, "total": 64} == shape["leases"]
    assert "k" == shape["blocked_keys"][0]["key"]
    shown = cli("status").stdout
    for text in ("backlog 1", "dead 1", "blocked keys 1", "audit", "one", "billing", "k"):
        assert text in shown
    assert max(map(len, cli("status", COLUMNS="60").stdout.splitlines())) <= 60


def test_consumers_and_inbox(cli: Cli) -> None:
    """List, show and forget what consumers did; page by page."""
    cli.do(lambda storage: handled(storage, "m-1", "m-2", "m-3"))
    (stats,) = cli.json("inbox", "stats")
    assert ("billing", 3) == (stats["consumer_name"], stats["counts"]["PROCESSED"])
    assert [stats] == cli.json("consumers")["stats"]
    page = cli.json("inbox", "list", "--limit", "2")
    assert ["m-3", "m-2"] == [item["message_id"] for item in page["items"]]
    rest = cli.json("inbox", "list", "--limit", "2", "--before", page["next"])
    assert (["m-1"], None) == ([item["message_id"] for item in rest["items"]], rest["next"])
    assert [] == cli.json("inbox", "list", "--consumer", "other")["items"]
    named = ["--consumer", "billing"]
    assert "PROCESSED" == cli.json("inbox", "show", "m-1", *named)["status"]
    assert 1 == cli("inbox", "show", "m-9", *named).exit_code
    assert 2 == cli("inbox", "forget", "m-1", *named).exit_code
    assert not cli.json("inbox", "forget", "m-1", *named, "--dry-run")["forgotten"]
    assert cli.json("inbox", "forget", "m-1", *named, "--yes")["forgotten"]
    assert 1 == cli("inbox", "forget", "m-1", *named, "--yes").exit_code


def test_pause_and_resume(cli: Cli) -> None:
    """A topic, a tenant or everything; to resume what runs is told by the exit code."""
    assert cli.json("pause", "--topic", "orders", "--reason", "why")["paused"]
    (pause,) = cli.json("status")["pauses"]
    assert ("orders", "why") == (pause["topic"], pause["reason"])
    assert cli.json("resume", "--topic", "orders")["resumed"]
    assert not cli.json("resume", "--topic", "orders", code=1)["resumed"]
    assert 2 == cli("pause", "--topic", "a", "--tenant", "b").exit_code
    trail = cli.do(lambda storage: storage.audit.search(AuditFilter(actor="tester")))
    assert 2 == len(trail)


def test_leases(cli: Cli) -> None:
    """Who owns what; leases are taken away from an owner, after a look."""

    async def work(storage) -> None:
        projector = instance("one")
        await storage.relay.heartbeat(projector)
        await storage.relay.claim(projector, 64)

    cli.do(work)
    listed = cli.json("lease", "list")
    assert ["one"] == [item["id"] for item in listed["workers"]]
    assert 64 == sum(item["is_held"] for item in listed["leases"])
    assert "0-63" in cli("lease", "list").stdout
    assert 2 == cli("lease", "release", "--yes").exit_code
    assert 64 == cli.json("lease", "release", "--owner", "one", "--dry-run")["released"]
    assert 1 == cli.json("lease", "release", "--partition", "7", "--yes")["released"]
    assert 63 == cli.json("lease", "release", "--owner", "one", "--yes")["released"]
    assert 0 == cli.json("lease", "release", "--owner", "two", "--yes", code=1)["released"]


def test_idempotency(cli: Cli) -> None:
    """By the client's key, or the hash that the list shows; answers only with --payload."""
    key = scoped_key("order-0001-abcd", method="POST", route="/orders", principal="ann")

    async def work(storage) -> None:
        hour = timedelta(hours=1)
        claim = await storage.idempotency.claim(key, fingerprint="f", lease=hour, keep=hour)
        answer = Answer(status_code=201, body=b"private")
        await storage.idempotency.complete(claim, answer, keep=hour)

    cli.do(work)
    (item,) = cli.json("idempotency", "list", "--state", "completed")["items"]
    assert ("ann", 201, key.key_hash) == (item["principal"], item["status_code"], item["key_hash"])
    scope = ["--principal", "ann", "--route", "/orders"]
    assert item == cli.json("idempotency", "show", "order-0001-abcd", *scope)
    assert "private" == cli.json("idempotency", "show", key.key_hash, *scope, "--payload")["body"]
    assert 1 == cli("idempotency", "show", "other", *scope).exit_code
    assert not cli.json("idempotency", "release", key.key_hash, *scope, "--dry-run")["released"]
    assert cli.json("idempotency", "release", key.key_hash, *scope, "--yes")["released"]
    assert [] == cli.json("idempotency", "list")["items"]
    trail = cli.do(lambda storage: storage.audit.search(AuditFilter(actor="tester")))
    assert ["idempotency.release"] == [row.action for row in trail]


def test_cleanup_archives_before_it_deletes(cli: Cli) -> None:
    """Every deleted row is in a file that only its owner can read; the rest stays."""

    async def work(storage) -> list[str]:
        made = await add(storage, *"abc")
        await send(storage, *made[:2])
        await handled(storage, "m-1")
        return made

    made = cli.do(work)
    nothing = ["--keep-sent", "0s", "--keep-inbox", "1s", "--horizon", "0s"]
    assert 2 == cli("cleanup", *nothing, "--yes").exit_code
    kept = ["--keep-sent", "1s", "--keep-inbox", "2s", "--horizon", "1s"]
    assert {"outbox", "inbox"} == set(cli.json("cleanup", *kept, "--dry-run")["estimate"])
    folder = cli.folder / "archive"

    def clean() -> dict[str, int]:
        options = ["--archive", str(folder), "--batch-size", "1", "--yes"]
        return cli.json("cleanup", "outbox", "inbox", *kept, *options)["removed"]

    removed = {"outbox": 0, "inbox": 0}
    for _ in range(100):  # until the rows are old enough
        now = clean()
        removed = {table: removed[table] + now[table] for table in removed}
        if {"outbox": 2, "inbox": 1} == removed:
            break
    assert {"outbox": 2, "inbox": 1} == removed
    lines = [
        json.loads(line)
        for file in sorted(folder.glob("outbox-*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert made[:2] == [line["id"] for line in lines]
    assert {"number": 0} == lines[0]["payload"]
    assert 2 <= len([*folder.iterdir()]) <= 3  # one per run that found something
    assert {0o600} == {file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert [made[2]] == [item["id"] for item in cli.json("outbox", "list")["items"]]


def test_cleanup_keeps_the_inbox_longer_than_messages_come_again(cli: Cli) -> None:
    """A window that would allow a second effect is refused."""
    done = cli("cleanup", "--keep-inbox", "3d", "--yes")
    assert 2 == done.exit_code
    assert "second effect" in done.stderr


def test_db_create_and_check(empty: Cli) -> None:
    """Ends with 1 while the tables are not there, and says what to do."""
    before = empty("db", "check")
    assert 1 == before.exit_code
    assert "semel db create" in before.stderr
    assert 1 == empty("outbox", "list").exit_code
    assert empty.json("db", "create") == {"created": True}
    assert empty.json("db", "check") == {"ok": True}


@pytest.mark.parametrize("state", ["nonsense", ""])
def test_a_wrong_choice_is_a_usage_error(cli: Cli, state: str) -> None:
    """The choices are told."""
    done = cli("outbox", "list", "--status", state)
    assert 2 == done.exit_code
    assert "'dead'" in done.stderr


def test_hostile_text_does_not_reach_the_terminal(cli: Cli) -> None:
    """Neither escape sequences nor markup of what others wrote are obeyed."""
    error = "\x1b[31m[bold]red[/bold]\x9b2J\x07"

    async def work(storage) -> None:
        await bury(storage, *await add(storage, "a", key="[red]k"))
        await storage.outbox.pause(topic="a", reason=error)

    cli.do(work)
    for done in (cli("status"), cli("outbox", "list"), cli("status", "--json")):
        assert 0 == done.exit_code, done.output
        assert not {"\x1b", "\x9b", "\x07"} & set(done.stdout)
    assert "[bold]red[/bold]" in cli("status").stdout
    assert "[red]k" in cli("outbox", "list").stdout
