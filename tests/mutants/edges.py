"""Bugs at the edges: brokers, the write path, clean-up, columns, connections."""

from __future__ import annotations

from tests.mutants.bug import Bug, Edit, node

EDGES = (
    Bug(
        "B7a",
        "a message that RabbitMQ returns counts as published",
        (
            Edit(
                "transports/amqp.py",
                "                    chunk.errors[position] = error\n",
                "                    chunk.errors.pop(position, error)\n",
            ),
        ),
        (node("transports/test_amqp", "test_return_is_no_success"),),
    ),
    Bug(
        "B7b",
        "a returned message counts as published where messages go one by one",
        (
            Edit(
                "transports/amqp_single.py",
                '            return failure("unroutable", describe(error), '
                "kind=self._unroutable)\n",
                "            return None\n",
            ),
        ),
        (node("transports/test_amqp", "test_fallback_outcomes"),),
    ),
    Bug(
        "B8a",
        "Kafka's offset is committed past a message that is not acked",
        (
            Edit(
                "transports/kafka_consumer.py",
                "while self.entries and self.entries[0].settled:",
                "while self.entries and self.entries[0].offset <= entry.offset:",
            ),
        ),
        (node("transports/test_kafka_consuming", "test_commit_never_passes_an_unacked_message"),),
    ),
    Bug(
        "B8b",
        "the position in the database bus passes a message that is not acked",
        (
            Edit(
                "transports/database_log.py",
                "        return next(iter(self._entries), self.fetched)\n",
                "        return next(reversed(self._entries), self.fetched)\n",
            ),
        ),
        (
            node("transports/test_database_groups", "test_a_dead_member_is_taken_over[sqlite]"),
            node("transports/test_database", "TestContract::test_unacked_comes_again[sqlite]"),
        ),
    ),
    Bug(
        "B8c",
        "one ack to RabbitMQ takes older messages with it that are not acked",
        (
            Edit(
                "transports/rabbitmq_acks.py",
                "frames = [(tag, False) for tag in sorted(new)]",
                "frames = [(tag, True) for tag in sorted(new)]",
            ),
        ),
        (node("transports/test_amqp_frames", "test_acks_in_one_frame"),),
    ),
    Bug(
        "B15a",
        "the clean-up of the outbox removes what was not sent",
        (
            Edit(
                "sqlalchemy/outbox_cleanup.py",
                "        old = and_(\n"
                "            OUTBOX.c.status == OutboxStatus.SENT.value,\n"
                "            OUTBOX.c.lane.is_(None),\n"
                "            OUTBOX.c.sent_at < cutoff,\n"
                "        )\n",
                "        old = OUTBOX.c.created_at < cutoff\n",
            ),
        ),
        (
            node(
                "stores/test_outbox",
                "TestOutboxStore::test_cleanup_deletes_what_is_sent_and_old[sqlite]",
            ),
        ),
    ),
    Bug(
        "B15c",
        "the clean-up of the database bus removes what a group has not consumed",
        (
            Edit(
                "sqlalchemy/bus.py",
                "_message.c.position < (end if consumed is None else consumed),",
                "_message.c.position < end,",
            ),
        ),
        (node("transports/test_database_groups", "test_retention_waits_for_every_group[sqlite]"),),
    ),
    Bug(
        "B20a",
        "events of a savepoint that was rolled back are written",
        (
            Edit(
                "sqlalchemy/buffer.py",
                "            del self.rows[length:]\n",
                "            del self.rows[len(self.rows) :]\n",
            ),
        ),
        (
            node(
                "stores/test_savepoints",
                "test_fm_p02_a_savepoint_rolled_back_drops_its_events[sqlite]",
            ),
        ),
    ),
    Bug(
        "B20b",
        "events of a transaction that was rolled back are written with the connection's next one",
        (
            Edit(
                "sqlalchemy/buffer.py",
                "def _begin(connection: Connection, *_: Any) -> None:\n"
                "    _buffers.pop(connection, None)\n",
                "def _begin(connection: Connection, *_: Any) -> None:\n",
            ),
            Edit(
                "sqlalchemy/buffer.py",
                "def _discard(connection: Connection, *_: Any) -> None:\n"
                "    _buffers.pop(connection, None)\n",
                "def _discard(connection: Connection, *_: Any) -> None:\n    pass\n",
            ),
        ),
        (
            node(
                "stores/test_savepoints",
                "test_fm_p01_a_connection_used_again_after_a_rollback[sqlite]",
            ),
        ),
    ),
    Bug(
        "B20c",
        "events of a stored entity outlive the rollback of its change",
        (
            Edit(
                "sqlalchemy/emitters.py",
                "            if state is not None and state.persistent:\n",
                "            if state is None:\n",
            ),
        ),
        (
            node(
                "stores/test_collect_on_flush",
                "test_a_rollback_undoes_events_of_stored_entities[sqlite]",
            ),
        ),
    ),
    Bug(
        "B21a",
        "ids are compared without regard to case, on MariaDB",
        (
            Edit(
                "sqlalchemy/dialects/mysql.py", "names_are_bytes = True", "names_are_bytes = False"
            ),
            Edit(
                "sqlalchemy/dialects/mysql.py",
                "return mysql.VARBINARY(4 * length)",
                "return mysql.VARCHAR(length)",
            ),
        ),
        (node("stores/test_inbox", "TestInbox::test_ids_differ_byte_for_byte[mariadb]"),),
    ),
    Bug(
        "B21b",
        "ids are compared without regard to case, on SQLite",
        (
            Edit(
                "sqlalchemy/dialects/sqlite.py",
                "    own_transaction_options: Mapping[str, Any] = {}\n",
                "    own_transaction_options: Mapping[str, Any] = {}\n\n"
                "    def name_type(self, length: int) -> TypeEngine[Any]:\n"
                '        return String(length, collation="NOCASE")\n',
            ),
        ),
        (node("stores/test_inbox", "TestInbox::test_ids_differ_byte_for_byte[sqlite]"),),
    ),
    Bug(
        "B22",
        "a connection whose statement was cancelled is used again",
        (
            Edit(
                "sqlalchemy/connection.py",
                "                await self._discard()\n                raise\n",
                "                raise\n",
            ),
        ),
        (
            node(
                "stores/test_relay_findings",
                "test_fm_r21_a_cancelled_statement_does_not_answer_the_next_one[mariadb]",
            ),
            node(
                "stores/test_relay_findings",
                "test_fm_r21_a_cancelled_statement_does_not_answer_the_next_one[postgres]",
            ),
        ),
    ),
)
