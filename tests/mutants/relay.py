"""Bugs of the relay: leases, outcomes, order."""

from __future__ import annotations

from tests.mutants.bug import Bug, Edit, node

_OUTAGE = "scenarios/test_broker_outage"
_KEYS = "scenarios/test_failed_keys"
_STORE = "stores/test_outbox"
_CALLS = "stores/test_idempotency"
_GROUPS = "transports/test_database_groups"
_TIME = "test_fm_p10_the_databases_clock_does_not_order_events"

RELAY = (
    Bug(
        "B1",
        "events are marked SENT before they are published",
        (
            Edit(
                "sending.py",
                "                    results = await self._bus.publish_many(messages)\n",
                "                    sequences = [entry.sequence for entry in batch]\n"
                "                    await self._store.acknowledge(sequences, keep=True)\n"
                "                    results = await self._bus.publish_many(messages)\n",
            ),
        ),
        (node("scenarios/test_crash_matrix", "test_killed_in_the_middle_of_a_batch[sqlite-7]"),),
    ),
    Bug(
        "B2a",
        "FAILED and DEAD are stored without a look at the lease's owner and epoch",
        (
            Edit(
                "sqlalchemy/relay.py",
                "return {number for number, epoch in rows if epochs.get(number) == epoch}",
                "return set(epochs)",
            ),
        ),
        (node(_STORE, "TestRelayStore::test_a_zombie_writes_nothing[sqlite]"),),
    ),
    Bug(
        "B2b",
        "an idempotent call is completed without a look at its token",
        (
            Edit(
                "sqlalchemy/idempotency.py",
                '_CALLS.c.token == bindparam("b_token"), _CALLS.c.state',
                '_CALLS.c.token >= "", _CALLS.c.state',
            ),
        ),
        (node(_CALLS, "TestIdempotency::test_a_lost_key_stops_the_sessions_transaction[sqlite]"),),
    ),
    Bug(
        "B2c",
        "a member of the database bus stores its position without a look at its lease",
        (
            Edit(
                "sqlalchemy/bus_groups.py",
                'bindparam("of_owner", type_=_group.c.owner.type)',
                "_group.c.owner",
            ),
            Edit(
                "sqlalchemy/bus_groups.py",
                "and_(mine, _group.c.epoch == epoch)",
                "and_(mine, epoch == epoch)",
            ),
        ),
        (node(_GROUPS, "test_a_lease_that_was_lost_while_asleep[sqlite]"),),
    ),
    Bug(
        "B3a",
        "the lease of a projector that died never runs out",
        (
            Edit(
                "sqlalchemy/leases.py",
                "or_(_lease.c.owner.is_(None), _lease.c.expires_at <= now)",
                "_lease.c.owner.is_(None)",
            ),
        ),
        (node(_STORE, "TestRelayStore::test_an_expired_lease_is_taken_over[sqlite]"),),
    ),
    Bug(
        "B3b",
        "the lease of a request that died never runs out",
        (
            Edit(
                "sqlalchemy/idempotency.py",
                "if found.state == _STARTED and found.leased <= 0:",
                "if found.state == _STARTED and found.leased is None:",
            ),
        ),
        (node(_CALLS, "TestIdempotency::test_a_lease_that_is_over_is_taken_over_once[sqlite]"),),
    ),
    Bug(
        "B3c",
        "the lease of a member of the database bus that died never runs out",
        (
            Edit(
                "sqlalchemy/bus_groups.py",
                "or_(_group.c.owner.is_(None), _group.c.expires_at <= self._database.now()),\n",
                "_group.c.owner.is_(None),\n",
            ),
        ),
        (node(_GROUPS, "test_a_dead_member_is_taken_over[sqlite]"),),
    ),
    Bug(
        "B9",
        "a batch is marked as a whole once one of its events was confirmed",
        (
            Edit(
                "publishing.py",
                "        if any(results):\n            return await self._sort_out",
                "        if all(results):\n            return await self._sort_out",
            ),
        ),
        (node(_KEYS, "test_a_failed_event_holds_back_its_own_key_only[sqlite]"),),
    ),
    Bug(
        "B10a",
        "an exception out of the bus, after which outcomes are unknown, counts as success",
        (
            Edit(
                "publishing.py",
                'results = [PublishError(describe(error.cause), kind="unknown")] * len(batch)',
                "results = [None] * len(batch)",
            ),
        ),
        (node(_OUTAGE, "test_a_connection_lost_in_mid_batch[sqlite]"),),
    ),
    Bug(
        "B10b",
        "an outcome that the bus calls unknown counts as success",
        (
            Edit(
                "publishing.py",
                "            if result is None:\n                confirmed.append(entry)\n",
                '            if result is None or result.kind == "unknown":\n'
                "                confirmed.append(entry)\n",
            ),
        ),
        (node(_OUTAGE, "test_unknown_outcomes_are_resent_with_the_same_id[sqlite]"),),
    ),
    Bug(
        "B11a",
        "events lose attempts while the broker is away",
        (
            Edit(
                "sending.py",
                'result.kind in ("destination", "unknown")',
                'result.kind == "destination"',
            ),
        ),
        (node(_OUTAGE, "test_an_outage_longer_than_all_retries[sqlite]"),),
    ),
    Bug(
        "B11b",
        "events lose attempts while their topic is missing",
        (
            Edit(
                "sending.py",
                'result.kind in ("destination", "unknown")',
                'result.kind == "unknown"',
            ),
        ),
        (node(_OUTAGE, "test_trouble_that_the_broker_reports_per_message[sqlite-1-destination]"),),
    ),
    Bug(
        "B11c",
        "messages lose attempts while the consumer's database is away",
        (
            Edit(
                "processing.py",
                "        return self._storage.is_transient(error)\n",
                "        return False\n",
            ),
        ),
        (node("scenarios/test_consumer_lifecycle", "test_a_database_that_is_down[postgres]"),),
    ),
    Bug(
        "B12a",
        "the relay reads rows by their time, on SQLite and MariaDB",
        (
            Edit(
                "sqlalchemy/dialects/lanes.py",
                "ORDER BY sequence LIMIT",
                "ORDER BY created_at LIMIT",
            ),
            Edit("sqlalchemy/dialects/lanes.py", "key=itemgetter(0)", "key=itemgetter(-1)"),
        ),
        (node("stores/test_stored_rows", f"{_TIME}[sqlite]"),),
    ),
    Bug(
        "B12b",
        "the relay reads rows by their time, on PostgreSQL",
        (
            Edit(
                "sqlalchemy/dialects/postgresql_sql.py",
                "outbox.sequence\n        LIMIT",
                "outbox.created_at\n        LIMIT",
            ),
            Edit(
                "sqlalchemy/dialects/postgresql_sql.py",
                "ORDER BY lane_rows.sequence",
                "ORDER BY lane_rows.due_at",
            ),
        ),
        (node("stores/test_stored_rows", f"{_TIME}[postgres]"),),
    ),
    Bug(
        "B12c",
        "the database bus reads messages by their time",
        (
            Edit(
                "sqlalchemy/bus_groups.py",
                ".order_by(_message.c.position)",
                ".order_by(_message.c.created_at)",
            ),
            Edit(
                "sqlalchemy/bus_groups.py",
                "return sorted((Row(*row) for row in rows), key=_place)",
                "return [Row(*row) for row in rows]",
            ),
        ),
        (node(_GROUPS, "test_clocks_do_not_order_messages[sqlite]"),),
    ),
    Bug(
        "B13a",
        "while an event waits for its next attempt, later ones of its key go out",
        (
            Edit(
                "charging.py",
                "            self._window.delay(group, now + failure.retry_in)\n",
                "            self._window.delay([head], now + failure.retry_in)\n"
                "            if head.key is not None:\n"
                "                self._window.free(head.key)\n"
                "            self._window.give_back(rest)\n",
            ),
        ),
        (node(_KEYS, "test_a_failed_event_holds_back_its_own_key_only[sqlite]"),),
    ),
    Bug(
        "B13b",
        "a new owner sends later events of a key whose FAILED event is not due",
        (
            Edit(
                "window.py",
                "            held = self._keys.get(entry.key)\n"
                "            if held is not None:\n"
                "                self._queue(held, entry)\n"
                "                return\n"
                "            self._keys[entry.key] = _Held(_WAITING)\n",
                "            pass\n",
            ),
        ),
        (node("unit/test_window", "test_a_row_that_is_not_due_is_delayed_when_read"),),
    ),
    Bug(
        "B13c",
        "the relay reads only rows that are due",
        (
            Edit(
                "sqlalchemy/dialects/lanes.py",
                'conditions = ""\n',
                'conditions = " AND retry_after IS NULL"\n',
            ),
        ),
        (node(_STORE, "TestRelayStore::test_fetch_returns_what_is_not_due_too[sqlite]"),),
    ),
    Bug(
        "B14a",
        "the projector's clock decides whether somebody else's lease has run out",
        (
            Edit(
                "sqlalchemy/leases.py",
                "_lease.c.expires_at <= now)",
                "_lease.c.expires_at <= datetime.now().astimezone())",
            ),
        ),
        (node("stores/test_skewed_clock", "test_leases_of_projectors[sqlite-behind]"),),
    ),
    Bug(
        "B14b",
        "the member's clock decides whether somebody else's lease of a log has run out",
        (
            Edit(
                "sqlalchemy/bus_groups.py",
                "\n\nfrom collections",
                "\n\nimport datetime\nfrom collections",
            ),
            Edit(
                "sqlalchemy/bus_groups.py",
                "_group.c.expires_at <= self._database.now()),\n",
                "_group.c.expires_at <= datetime.datetime.now().astimezone()),\n",
            ),
        ),
        (node("stores/test_skewed_clock", "test_leases_of_logs[sqlite-behind]"),),
    ),
)
