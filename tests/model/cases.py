"""The protocols as they are, and with each known bug: what holds, and what must be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.explore import Result, explore
from tests.model.idempotency import Idempotency, idempotency
from tests.model.inbox import Inbox, inbox
from tests.model.outbox import outbox
from tests.model.world import Outbox

World = Outbox | Inbox | Idempotency


@dataclass(frozen=True, slots=True)
class Case:
    """A world, and how its violation begins; None if everything holds in it."""

    name: str
    world: World
    violation: str | None = None

    def explore(self) -> Result:
        """Visit every state."""
        if isinstance(self.world, Outbox):
            return explore(outbox(self.world))
        if isinstance(self.world, Inbox):
            return explore(inbox(self.world))
        return explore(idempotency(self.world))


_PAIR: dict[str, Any] = {"events": "ab", "keys": "kk"}

SOUND = (
    Case("a lease that is lost, and a crash", Outbox(**_PAIR, takeovers=2, crashes=1)),
    Case("a lease that is lost, and an answer", Outbox(**_PAIR, takeovers=2, unknowns=1)),
    Case("writers that roll back", Outbox(**_PAIR, aborts=True)),
    Case("the floor, one owner", Outbox(floor=True, projectors=1)),
    Case("the floor, a takeover", Outbox(**_PAIR, floor=True, takeovers=2)),
    Case("SENT rows are deleted", Outbox(keys="kkk", floor=True, keep_sent=False, takeovers=1)),
    Case("an event FAILED and seen", Outbox(**_PAIR, fails=True, marks=True, takeovers=2)),
    Case("a DEAD event is skipped", Outbox(**_PAIR, dead="skip")),
    Case("a DEAD event blocks, and is requeued", Outbox(**_PAIR, dead="block", takeovers=2)),
    Case("the inbox: redelivery, a crash", Inbox(failures=1)),
    Case("the inbox: a message that kills", Inbox(crashes=0, deadly=True, attempts=2)),
    Case("the inbox: a DEAD message is replayed", Inbox(failures=1, attempts=1, replays=1)),
    Case("keys: a crash, leases that run out", Idempotency()),
    Case("keys: a failure, another body", Idempotency(requests="oop", failures=1, expiries=1)),
)

BUGS = (
    Case("no lock of the slot (finding 5)", Outbox(without_lock=True), "order"),
    Case(
        "the floor rises by time (finding 1)",
        Outbox(floor=True, floor_by_time=True, takeovers=1),
        "order",
    ),
    Case(
        "the floor looks at the locks too early (finding 1)",
        Outbox(floor=True, late_horizon=True, takeovers=1),
        "order",
    ),
    Case("a rolled-back event stays (finding 2)", Outbox(aborts=True, ghosts=True), "ghost"),
    Case(
        "numbers are reused (finding 6)",
        Outbox(keys="kkk", floor=True, keep_sent=False, reused_numbers=True, takeovers=1),
        "order",
    ),
    Case(
        "a fetch leaves out what is not due (finding 8)",
        Outbox(**_PAIR, fails=True, filtered_fetch=True),
        "order",
    ),
    Case(
        "the key goes on before DEAD is stored (finding 8)",
        Outbox(**_PAIR, dead="skip", early_skip=True),
        "order",
    ),
    Case(
        "a requeue does not drop the read-ahead (finding 8)",
        Outbox(**_PAIR, dead="block", read_ahead=True),
        "order",
    ),
    Case(
        "a new owner reads before it knows the blocked keys",
        Outbox(**_PAIR, dead="block", hasty_owner=True),
        "order",
    ),
    Case(
        "a key that dies during a survey is forgotten",
        Outbox(**_PAIR, dead="block", forgetful_survey=True),
        "order",
    ),
    Case(
        "a projector does not look at its own clock",
        Outbox(**_PAIR, dead="block", slow_clock=True),
        "order",
    ),
    Case(
        "FAILED and DEAD without the epoch (finding 16)",
        Outbox(**_PAIR, dead="block", unfenced_marks=True),
        "state machine",
    ),
    Case(
        "a late PUBLISHING overwrites SENT (finding 23)",
        Outbox(**_PAIR, marks=True, late_mark=True),
        "state machine",
    ),
    Case("SENT before it is published", Outbox(**_PAIR, crashes=1, early_sent=True), "order"),
    Case("unknown counts as published", Outbox(**_PAIR, unknowns=1, unknown_is_sent=True), "loss"),
    Case("leases never run out", Outbox(**_PAIR, crashes=1, eternal_lease=True), "loss"),
    Case("the clean-up takes what is unsent", Outbox(**_PAIR, hasty_cleanup=True), "order"),
    Case("the inbox row is committed first", Inbox(commit_first=True), "loss"),
    Case("the inbox row is committed apart", Inbox(two_transactions=True), "twice"),
    Case("the inbox is looked up, then written", Inbox(check_then_act=True), "twice"),
    Case("a message is acked first", Inbox(early_ack=True), "loss"),
    Case(
        "attempts are not durable (finding 11)",
        Inbox(crashes=0, deadly=True, attempts=2, forgetful=True),
        "loop",
    ),
    Case(
        "what is PROCESSED may be buried",
        Inbox(failures=1, attempts=1, careless_burial=True),
        "state machine",
    ),
    Case(
        "a late delivery reopens what is DEAD",
        Inbox(failures=2, attempts=1, reopened=True),
        "open",
    ),
    Case("a key is looked up, then claimed", Idempotency(check_then_act=True), "twice"),
    Case("a takeover does not check", Idempotency(takeover_without_check=True), "twice"),
    Case(
        "an answer without the token",
        Idempotency(requests="oop", failures=1, without_token=True),
        "body",
    ),
    Case("the answer is committed apart (finding 9)", Idempotency(answer_apart=True), "twice"),
    Case("the answer is sent first (finding 9)", Idempotency(early_answer=True), "answers"),
    Case("a repetition is executed", Idempotency(replay_executes=True), "twice"),
    Case("keys of the dead are never free", Idempotency(eternal_lease=True), "stuck"),
    Case(
        "whoever fails releases the key of others",
        Idempotency(failures=1, careless_release=True),
        "twice",
    ),
    Case("another body is not noticed", Idempotency(requests="op", ignored_body=True), "body"),
)

#: Too large for every day.
LARGE = (
    Case("leases, a crash, an answer that is lost", Outbox(**_PAIR, crashes=1, unknowns=1)),
    Case("the floor, a second projector", Outbox(floor=True, takeovers=1)),
    Case("an event FAILED and seen, takeovers", Outbox(**_PAIR, fails=True, marks=True)),
    Case("a DEAD event blocks, takeovers", Outbox(**_PAIR, dead="block")),
    Case("three events, a takeover", Outbox(takeovers=2)),
    Case("the inbox: three consumers", Inbox(consumers=3, crashes=2, failures=2, deliveries=4)),
    Case("keys: four requests", Idempotency(requests="ooop", crashes=2, failures=1, expiries=3)),
)
