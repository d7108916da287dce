"""Bugs of the inbox and of idempotency: what happens twice, or never."""

from __future__ import annotations

from tests.mutants.bug import Bug, Edit, node

_WORK = """
        async with self._storage.unit_of_work(
            tenant_id=job.receipt.tenant_id, consumer_name=self.consumer_name, cause=job.message
        ) as uow:
            gate = self._storage.gate(uow)
"""
_HANDLE = f"""{_WORK}\
            done = await self._run(job, uow, gate, admission)
            if done.outcome is not Outcome.DUPLICATE:
                await uow.commit()
"""
_NOTE = f"""{_WORK}\
            [admission] = await gate.admit([job.receipt])
            await uow.commit()
"""
_LOOK = _NOTE.replace("await uow.commit()", "await uow.rollback()")


def _apart(*transactions: str) -> tuple[Edit, ...]:
    """Let a message be processed in several transactions."""
    method = f"    async def _elsewhere(self, job: Job) -> InboxResult:{''.join(transactions)}"
    return (
        Edit("processing.py", "lambda: self._once(job)", "lambda: self._elsewhere(job)"),
        Edit(
            "processing.py",
            "    async def _join(",
            f"{method}        return done\n\n    async def _join(",
        ),
    )


EFFECTS = (
    Bug(
        "B4a",
        "the inbox row is committed before the handler runs",
        _apart(_NOTE, _HANDLE),
        (
            node(
                "scenarios/test_inbox",
                "test_a_failed_handler_leaves_nothing_and_runs_again[sqlite]",
            ),
        ),
    ),
    Bug(
        "B4b",
        "a message is acked before it is processed",
        (
            Edit(
                "handling.py",
                "            await self._processor.execute(job)\n",
                "            await item.delivery.ack()\n"
                "            await self._processor.execute(job)\n",
            ),
        ),
        (
            node(
                "scenarios/test_consumer_lifecycle",
                "test_a_cancelled_handler_is_no_failure[sqlite]",
            ),
        ),
    ),
    Bug(
        "B5",
        "the inbox row is committed in another transaction than the handler's work",
        _apart(_LOOK, _HANDLE, _NOTE),
        (
            node("scenarios/test_inbox", "test_two_instances_at_the_same_time[sqlite]"),
            node(
                "scenarios/test_inbox", "test_a_handler_that_ends_the_transaction[sqlite-rollback]"
            ),
        ),
    ),
    Bug(
        "B6a",
        "the key of a consumer's inbox has no consumer",
        (
            Edit(
                "processing.py",
                "        consumer_name=consumer_name,\n        message_id=",
                '        consumer_name="inbox",\n        message_id=',
            ),
        ),
        (node("scenarios/test_consumer", "test_two_consumers_and_two_instances[sqlite]"),),
    ),
    Bug(
        "B6c",
        "the key of an inbox that the application calls has no consumer",
        (
            Edit(
                "inbox.py",
                "            consumer_name=self.consumer_name,\n            message_id=",
                '            consumer_name="inbox",\n            message_id=',
            ),
        ),
        (node("scenarios/test_inbox", "test_two_consumers_both_process[sqlite]"),),
    ),
    Bug(
        "B6b",
        "the key of a consumer's inbox has no tenant",
        (
            Edit(
                "processing.py",
                "        tenant_id=message.tenant_id,\n        consumer_name=",
                '        tenant_id="default",\n        consumer_name=',
            ),
        ),
        (node("scenarios/test_consumer", "test_the_same_id_in_two_tenants[sqlite]"),),
    ),
    Bug(
        "B15b",
        "the clean-up of the inbox removes what is DEAD or PARKED",
        (
            Edit(
                "sqlalchemy/inbox.py",
                "return and_(INBOX.c.processed_at < line, INBOX.c.status.in_(_REMOVABLE))",
                "return INBOX.c.processed_at < line",
            ),
        ),
        (
            node(
                "stores/test_inbox",
                "TestInbox::test_cleanup_never_removes_the_dead_and_parked[sqlite]",
            ),
        ),
    ),
    Bug(
        "B16a",
        "a key is looked up first and claimed then",
        (
            Edit(
                "sqlalchemy/idempotency.py",
                "            if await self._run(insert, session):\n",
                "            if await self._run(read, session) is None:\n"
                "                await self._run(insert, session)\n",
            ),
        ),
        (
            node(
                "stores/test_idempotency", "TestIdempotency::test_one_of_many_gets_the_key[sqlite]"
            ),
        ),
    ),
    Bug(
        "B16b",
        "a message is looked up first and noted in the inbox then",
        (
            Edit(
                "sqlalchemy/gate.py",
                "            new = database.insert_absent("
                "connection, INBOX, _uniform(rows), stamped=_STAMPS)\n",
                "            new = {_key(r) for r in chunk if not _read(connection, database, r)}\n"
                "            database.insert_absent("
                "connection, INBOX, _uniform(rows), stamped=_STAMPS)\n",
            ),
        ),
        (
            node(
                "stores/test_inbox",
                "TestInbox::test_a_concurrent_insert_waits_and_is_a_duplicate[postgres]",
            ),
        ),
    ),
    Bug(
        "B17a",
        "an idempotency key has no tenant",
        (
            Edit(
                "idempotency/keys.py",
                "tenant_id=check_tenant(tenant_id),",
                "tenant_id=DEFAULT_TENANT,",
            ),
        ),
        (
            node(
                "stores/test_idempotency",
                "TestIdempotency::test_scopes_are_apart[sqlite-tenant_id]",
            ),
        ),
    ),
    Bug(
        "B17b",
        "an idempotency key has no principal",
        (Edit("idempotency/keys.py", "principal=_fit(principal),", 'principal="anybody",'),),
        (
            node(
                "stores/test_idempotency",
                "TestIdempotency::test_scopes_are_apart[sqlite-principal]",
            ),
        ),
    ),
    Bug(
        "B18a",
        "the answer of a request is stored after its transaction",
        (
            Edit("asgi/call.py", "        await self._seal.commit()\n", ""),
            Edit(
                "asgi/call.py",
                "        await self._storage.idempotency.complete(\n"
                "            self._held, answer, keep=self.policy.keep, "
                "session=self._seal.session\n",
                "        await self._seal.commit()\n"
                "        await self._storage.idempotency.complete(\n"
                "            self._held, answer, keep=self.policy.keep\n",
            ),
        ),
        (
            node(
                "web/test_idempotency_troubles",
                "test_a_request_that_outlives_its_lease_is_undone[sqlite-function]",
            ),
        ),
    ),
    Bug(
        "B18b",
        "the result of an idempotent function is stored after its transaction",
        (
            Edit("idempotency/functions.py", "                await uow.commit()\n", ""),
            Edit(
                "idempotency/functions.py",
                "                await store.complete("
                "held, answer, keep=self.keep, session=uow.session)\n",
                "                await uow.commit()\n"
                "                await store.complete(held, answer, keep=self.keep)\n",
            ),
        ),
        (node("stores/test_idempotent_calls", "test_one_that_lost_its_key_is_undone[sqlite]"),),
    ),
    Bug(
        "B19a",
        "once its lease has run out, a call that was executed is executed again",
        (
            Edit(
                "sqlalchemy/idempotency.py",
                "        if found.state == _STARTED and found.leased <= 0:\n"
                "            return and_("
                "_CALLS.c.state == _STARTED, _CALLS.c.locked_until <= now)\n",
                "        if found.leased <= 0:\n            return _CALLS.c.locked_until <= now\n",
            ),
        ),
        (
            node(
                "stores/test_idempotency",
                "TestIdempotency::test_committed_is_never_taken_over[sqlite]",
            ),
        ),
    ),
    Bug(
        "B19b",
        "a repeated request is executed again although its answer is known",
        (
            Edit(
                "asgi/call.py", "        if found.answer is not None:\n", "        if not found:\n"
            ),
        ),
        (node("web/test_idempotency", "test_a_repetition_gets_the_same_answer[sqlite]"),),
    ),
)
