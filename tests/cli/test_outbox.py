"""Look at events, and repair them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.operations import AuditFilter
from semel.testing.contracts.rows import add, bury, send
from tests.cli.conftest import Cli, both

pytestmark = both

ROW = {
    *("sequence", "id", "tenant_id", "topic", "event_type", "order_key", "routing_key", "status"),
    *("aggregate_type", "aggregate_id", "retry_count", "retry_after", "error_message"),
    *("occurred_at", "created_at", "available_at", "sent_at", "last_attempt_at", "content_type"),
    *("schema_id", "schema_version", "dead_letter"),
}


def seed(cli: Cli, *topics: str, dead: int = 0, sent: int = 0, **options: str) -> list[str]:
    """Commit events; the first ones are dead, the next ones sent."""

    async def work(storage) -> list[str]:
        made = await add(storage, *topics, **options)
        if dead:
            await bury(storage, *made[:dead])
        if sent:
            await send(storage, *made[dead : dead + sent])
        return made

    return cli.do(work)


def statuses(cli: Cli) -> list[str]:
    return [item["status"] for item in reversed(cli.json("outbox", "list")["items"])]


def test_list_pages_newest_first(cli: Cli) -> None:
    """`next` leads to the next page, and is null on the last one."""
    made = seed(cli, "a", "a", "b")
    first = cli.json("outbox", "list", "--limit", "2")
    assert made[:0:-1] == [item["id"] for item in first["items"]]
    assert set(first["items"][0]) == ROW
    second = cli.json("outbox", "list", "--limit", "2", "--before", str(first["next"]))
    assert [made[0]] == [item["id"] for item in second["items"]]
    assert second["next"] is None


def test_list_filters(cli: Cli) -> None:
    """By state, topic, key and time; states in any case."""
    made = seed(cli, "a", "b", dead=1, key="k")
    other = seed(cli, "c", key="other")
    assert [made[0]] == [i["id"] for i in cli.json("outbox", "list", "--status", "dead")["items"]]
    assert [made[1]] == [i["id"] for i in cli.json("outbox", "list", "--topic", "b")["items"]]
    assert other == [i["id"] for i in cli.json("outbox", "list", "--key", "other")["items"]]
    assert [] == cli.json("outbox", "list", "--until", "1h")["items"]
    assert 3 == len(cli.json("outbox", "list", "--since", "1h")["items"])
    shown = cli("outbox", "list", "--status", "DEAD")
    assert made[0] in shown.stdout
    assert made[1] not in shown.stdout


def test_show_hides_the_payload_unless_asked(cli: Cli) -> None:
    """And ends with 1 for an event that is not there."""
    (event_id,) = seed(cli, "a")
    assert ROW == set(cli.json("outbox", "show", event_id))
    full = cli.json("outbox", "show", event_id, "--payload")
    assert {"number": 0} == full["payload"]
    assert "number" not in cli("outbox", "show", event_id).output
    assert '"number": 0' in cli("outbox", "show", event_id, "--payload").output
    missing = cli("outbox", "show", "nothing")
    assert 1 == missing.exit_code
    assert "no event 'nothing'" in missing.stderr
    assert "" == missing.stdout


def test_why_answers_in_a_sentence(cli: Cli) -> None:
    """With the structure behind it as JSON."""
    dead, sent = seed(cli, "a", "b", dead=1, sent=1)
    answer = cli.json("outbox", "why", dead)
    assert {"event_id", "status", "reasons", "sentence"} <= set(answer)
    assert "dead" == answer["reasons"][0]["kind"]
    assert answer["reasons"][0]["sentence"] in cli("outbox", "why", dead).stdout
    assert "sent" == cli.json("outbox", "why", sent)["reasons"][0]["kind"]
    assert 1 == cli("outbox", "why", "nothing").exit_code


@pytest.mark.parametrize(
    ("verb", "after"), [("requeue", ["NEW"]), ("skip", ["DEAD"]), ("drop", [])], ids=str
)
def test_verbs_by_id(cli: Cli, verb: str, after: list[str]) -> None:
    """A dry run changes nothing; without a terminal nothing happens without --yes."""
    (event_id,) = seed(cli, "a", dead=1, key="k")
    look = cli.json("outbox", verb, event_id, "--dry-run")
    assert {"verb": verb, "changed": 1, "dry_run": True} == {
        name: look[name] for name in ("verb", "changed", "dry_run")
    }
    refused = cli("outbox", verb, event_id)
    assert 2 == refused.exit_code
    assert "--yes" in refused.stderr
    assert ["DEAD"] == statuses(cli)
    done = cli.json("outbox", verb, event_id, "--yes")
    assert {
        "verb": verb,
        "changed": 1,
        "dry_run": False,
        "finished": True,
        "cancelled": False,
        "position": None,
    } == done
    assert after == statuses(cli)
    trail = cli.do(lambda storage: storage.audit.search(AuditFilter(actor="tester")))
    assert 1 == len(trail)


def test_verbs_say_what_was_not_there(cli: Cli) -> None:
    """An id that is unknown or not DEAD: the rest is done, the exit code is 1."""
    dead, new = seed(cli, "a", "b", dead=1)
    done = cli("outbox", "requeue", dead, new, "nothing", "--yes")
    assert 1 == done.exit_code
    assert "1 events requeued" in done.stdout
    assert "2 are not there, or not DEAD" in done.stderr


def test_requeue_by_filter(cli: Cli) -> None:
    """Only what matches, and only what is DEAD."""
    seed(cli, "a", "a", "b", dead=3)
    seed(cli, "a")
    assert 2 == cli.json("outbox", "requeue", "--topic", "a", "--dry-run")["changed"]
    assert 2 == cli.json("outbox", "requeue", "--topic", "a", "--yes")["changed"]
    assert ["NEW", "NEW", "DEAD", "NEW"] == statuses(cli)
    assert 1 == cli.json("outbox", "requeue", "--all", "--yes")["changed"]


@pytest.mark.parametrize("extra", [[], ["x", "--all"], ["--all", "--topic", "a"]], ids=str)
def test_verbs_need_one_choice(cli: Cli, extra: list[str]) -> None:
    """Ids, a filter, or --all: never nothing, never two of them."""
    done = cli("outbox", "drop", *extra, "--yes")
    assert 2 == done.exit_code
    assert "ids, or a filter, or --all" in done.stderr


def test_replay_of_a_topic(cli: Cli) -> None:
    """SENT events become NEW, with their ids; others stay as they are."""
    made = seed(cli, "a", "b", "a", sent=3)
    assert 2 == cli.json("outbox", "replay", "--topic", "a", "--dry-run")["changed"]
    assert ["SENT"] * 3 == statuses(cli)
    assert 2 == cli.json("outbox", "replay", "--topic", "a", "--yes")["changed"]
    assert ["NEW", "SENT", "NEW"] == statuses(cli)
    assert made == [i["id"] for i in reversed(cli.json("outbox", "list")["items"])]
    refused = cli("outbox", "replay", "--yes")
    assert 2 == refused.exit_code
    assert "which events?" in refused.stderr


def test_replay_stops_after_the_canary(cli: Cli) -> None:
    """With nobody to ask; --after goes on where it stopped, at a rate if wanted."""
    seed(cli, "a", "a", "a", "a", sent=4)
    canary = cli.json("outbox", "replay", "--topic", "a", "--canary", "1", "--yes")
    assert (1, False) == (canary["changed"], canary["finished"])
    assert ["NEW", "SENT", "SENT", "SENT"] == statuses(cli)
    options = ["--topic", "a", "--after", str(canary["position"]), "--rate", "1000", "--yes"]
    rest = cli.json("outbox", "replay", *options)
    assert (3, True) == (rest["changed"], rest["finished"])


def test_export_writes_lines(cli: Cli) -> None:
    """Oldest first, to stdout or to a new file that only its owner can read."""
    made = seed(cli, "a", "b")
    done = cli("outbox", "export")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert made == [line["id"] for line in lines]
    assert ROW == set(lines[0])
    file = Path(cli.folder) / "events.jsonl"
    assert 0 == cli("outbox", "export", "--topic", "b", "--payload", "-o", str(file)).exit_code
    (line,) = file.read_text().splitlines()
    assert {"number": 1} == json.loads(line)["payload"]
    assert 0o600 == file.stat().st_mode & 0o777
    again = cli("outbox", "export", "-o", str(file))
    assert 2 == again.exit_code
    assert "exists already" in again.stderr
