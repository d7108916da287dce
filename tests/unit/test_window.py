"""The rows that a projector holds in memory leave in order, one batch per key, and none is lost."""

from __future__ import annotations

import pytest

from semel.envelope import MessageEnvelope
from semel.holds import Suspicion
from semel.relay import Entry
from semel.window import Window


def entry(
    sequence: int,
    key: str | None = "k",
    *,
    topic: str = "orders",
    partition: int = 0,
    status: str = "NEW",
    wait: float | None = None,
    attempts: int = 0,
) -> Entry:
    envelope = MessageEnvelope(topic=topic, payload=sequence, event_id=f"e{sequence}", key=key)
    order = None if key is None else (envelope.tenant_id, key)
    return Entry(sequence, partition, status, attempts, wait, order, envelope)


def window(*entries: Entry, capacity: int = 1000, suspects: int = 0) -> Window:
    fresh = Window(capacity)
    for partition in {0, *(row.partition for row in entries)}:
        fresh.lanes.add(partition, 1, suspects=suspects)
        fresh.lanes[partition].surveyed = True
    feed(fresh, *entries)
    return fresh


def feed(target: Window, *entries: Entry, now: float = 0.0) -> None:
    target.feed(target.reads(everything=True), entries, now)


def numbers(batch: list[Entry]) -> list[int]:
    return [row.sequence for row in batch]


def test_rows_of_one_key_leave_together_and_in_order():
    target = window(entry(1), entry(2, "other"), entry(3))
    assert [1, 2, 3] == numbers(target.take(10, 0.0))


def test_a_key_in_flight_is_in_no_other_batch():
    target = window(entry(1), entry(2), entry(3, "other"))
    first = target.take(1, 0.0)
    assert [3] == numbers(target.take(10, 0.0))
    target.land(first)
    assert [2] == numbers(target.take(10, 0.0))


def test_keyless_rows_wait_for_nobody():
    target = window(entry(1, None), entry(2, None))
    target.take(1, 0.0)
    assert [2] == numbers(target.take(1, 0.0))


def test_rows_given_back_go_first_again():
    target = window(entry(1), entry(2), entry(3), entry(4, "other"))
    target.give_back(target.take(2, 0.0))
    assert [1, 2, 3, 4] == numbers(target.take(10, 0.0))


def test_behind_a_delayed_row_its_key_waits_and_others_go():
    target = window(entry(1), entry(2), entry(3, "other"))
    batch = target.take(2, 0.0)
    target.delay(batch, 5.0)
    assert [3] == numbers(target.take(10, 4.9))
    assert target.next_due() == 5.0
    assert [1, 2] == numbers(target.take(10, 5.0))


def test_a_row_that_is_not_due_is_delayed_when_read():
    """Finding 8: dueness is decided in memory, so that the rows behind it are held back."""
    target = window(entry(1, wait=3.0, status="FAILED"), entry(2))
    assert [] == target.take(10, 2.9)
    assert [1, 2] == numbers(target.take(10, 3.0))


def test_a_row_before_one_that_is_not_due_goes_first():
    """A requeued event may lie before a FAILED one of its key."""
    target = window(entry(1), entry(2, wait=3.0, status="FAILED"))
    first = target.take(10, 0.0)
    assert [1] == numbers(first)
    target.land(first)
    assert [] == target.take(10, 2.9)
    assert [2] == numbers(target.take(10, 3.0))


def test_more_rows_than_the_queue_holds_are_parked_and_come_back_in_order():
    target = window(*(entry(number) for number in range(1, 101)))
    target.delay(target.take(1, 0.0), 5.0)
    target.take(10, 0.0)
    assert list(range(66, 101)) == numbers(target.to_park)
    assert target.is_overflowing
    assert [] == target.take(10, 5.0), "what is parked must be read first"
    assert target.overflowed
    assert target.is_overflowing
    assert list(range(66, 101)) + list(range(2, 66)) + [1] == numbers(target.to_park)


def test_a_reset_lets_an_overflowed_key_go_on():
    """The key of a delayed row whose followers were parked is not held for ever."""
    target = window(*(entry(number) for number in range(1, 101)))
    target.delay(target.take(1, 0.0), 5.0)
    target.take(10, 0.0)
    target.reset()
    feed(target, *(entry(number) for number in range(1, 101)))
    assert list(range(1, 11)) == numbers(target.take(10, 0.0))
    assert not target.overflowed


def test_a_blocked_key_is_parked_and_others_go():
    target = window(entry(1), entry(2), entry(3, "other"), entry(4))
    batch = target.take(2, 0.0)
    target.settle(batch[0])
    target.block(("default", "k"), batch[1:])
    assert [3] == numbers(target.take(10, 0.0))
    assert [2, 4] == numbers(target.to_park)


def test_a_key_blocked_during_a_survey_stays_blocked():
    """Finding 8: the survey may have read the table before the DEAD mark was stored."""
    target = window(entry(1))
    target.holds.begin_survey()
    target.block(("default", "k"), [])
    assert {("default", "k")} == target.holds.found([])
    target.holds.begin_survey()
    assert set() == target.holds.found([])


@pytest.mark.parametrize("held", ["topics", "tenants"])
def test_what_is_paused_holds_its_keys_in_other_topics(held: str):
    target = window(entry(1), entry(2, topic="invoices"), entry(3, "other", topic="invoices"))
    if held == "topics":
        target.holds.topics = frozenset({"orders"})
        assert [3] == numbers(target.take(10, 0.0))
    else:
        target.holds.tenants = frozenset({"default"})
        assert [] == target.take(10, 0.0)


def test_a_retained_row_keeps_its_key_until_it_lands():
    target = window(entry(1), entry(2), entry(3, "other"))
    batch = target.take(2, 0.0)
    assert batch[0] is target.retain(batch)
    assert [3] == numbers(target.take(10, 0.0))
    target.reset()
    feed(target, entry(2), entry(4, "another"))
    assert [4] == numbers(target.take(10, 0.0)), "a reset must not free the key"
    target.land(batch[:1])
    assert [2] == numbers(target.take(10, 0.0))


def test_a_recalled_key_waits_until_it_is_read_again():
    """A fenced write found nothing: what memory knows of the key is out of date."""
    target = window(entry(1), entry(2), entry(3))
    target.recall(target.take(2, 0.0))
    assert [] == target.take(10, 0.0)
    target.reset()
    feed(target, entry(2), entry(3))
    assert [2, 3] == numbers(target.take(10, 0.0))


@pytest.mark.parametrize("how", ["give_back", "delay", "retain"])
def test_a_row_of_a_partition_that_we_leave_does_not_keep_it(how: str):
    """A retry that is far away, or an outage, must not delay the hand-over."""
    target = window(entry(1))
    batch = target.take(1, 0.0)
    target.leave([0])
    assert [] == target.lanes.left(), "it is in flight"
    if how == "give_back":
        target.give_back(batch)
    elif how == "delay":
        target.delay(batch, 300.0)
    else:
        assert target.retain(batch) is None
    assert [0] == target.lanes.left()
    assert [] == target.take(10, 1000.0)


def test_rows_of_a_tenure_that_is_over_change_nothing():
    """A lease was lost and won again while a batch was in flight."""
    target = window(entry(1), entry(2))
    stale = target.take(10, 0.0)
    target.drop_lanes([0])
    target.lanes.add(0, 2)
    target.lanes[0].surveyed = True
    again = [entry(1), entry(2)]
    feed(target, *again)
    assert [] == target.take(10, 0.0), "the key is still in flight"
    target.give_back(stale)
    assert again == target.take(10, 0.0), "each row once"
    assert 998 == target.room


def test_a_partition_is_not_read_before_its_blocked_keys_are_known():
    target = window(entry(1))
    target.lanes.add(7, 1)
    assert [0] == [read.partition for read in target.reads(everything=True)]
    feed(target, entry(2, "other", partition=7))
    assert [1] == numbers(target.take(10, 0.0)), "a fetch of an earlier tenure is ignored"


def test_rows_that_a_dead_owner_was_publishing_go_one_by_one():
    """Finding 23: only where the owner died; elsewhere PUBLISHING means nothing."""
    rows = [entry(n, None, status="PUBLISHING") for n in (1, 2)]
    target = window(*rows, entry(3, None), suspects=10)
    assert [] == target.take(10, 0.0, solo=False)
    assert [1] == numbers(target.take(10, 0.0))
    assert [2] == numbers(target.take(10, 0.0))
    assert [3] == numbers(target.take(10, 0.0))
    calm = window(*(entry(n, None, status="PUBLISHING") for n in (1, 2)))
    assert [1, 2] == numbers(calm.take(10, 0.0, solo=False))


def test_a_row_that_had_trouble_goes_in_a_batch_of_its_own():
    target = window(entry(1, None), entry(2, None), entry(3, None))
    target.alone[2] = Suspicion(0.0, 1)
    assert [1] == numbers(target.take(10, 0.0))
    assert [2] == numbers(target.take(10, 0.0))
    assert [3] == numbers(target.take(10, 0.0))


def test_a_sample_has_different_topics_and_keys():
    target = window(entry(1, "a"), entry(2, "a"), entry(3, "b"), entry(4, "c", topic="invoices"))
    assert [1, 4] == numbers(target.sample(2, 0.0))
    assert [3] == numbers(target.take(10, 0.0))


def test_a_row_acknowledged_during_a_fetch_is_not_taken_in_again():
    target = window(entry(1))
    batch = target.take(1, 0.0)
    reads = target.reads(everything=True)
    target.land(batch)
    target.settle(batch[0])
    target.feed(reads, [entry(1)], 0.0)
    assert [] == target.take(10, 0.0)
    assert target.room == target.capacity


class TestFloor:
    """Finding 1: the floor rises only up to where no writer can add rows any more."""

    def test_it_rises_to_just_below_the_lowest_unsent_row(self):
        target = window(entry(5), entry(8, "other"))
        reads = target.reads(everything=True)
        target.feed(reads, [], 0.0)
        target.lanes.raise_floors(reads, target.lanes.horizons(()))
        assert 4 == target.lanes[0].floor

    def test_it_does_not_rise_past_a_busy_writer(self):
        target = window(entry(5))
        reads = target.reads(everything=True)
        target.feed(reads, [], 0.0)
        target.lanes.raise_floors(reads, target.lanes.horizons({0}))
        assert 0 == target.lanes[0].floor

    def test_it_does_not_rise_past_what_the_fetch_saw(self):
        target = window(entry(50), capacity=9)
        horizons = target.lanes.horizons(())
        reads = target.reads(everything=True)
        target.feed(reads, [entry(n, None) for n in range(1, 9)], 0.0)
        target.lanes.raise_floors(reads, horizons)
        assert 0 == target.lanes[0].floor, "there may be more rows before the horizon"

    def test_a_row_below_it_counts_as_late(self):
        target = window(entry(5))
        target.land(batch := target.take(1, 0.0))
        target.settle(batch[0])
        reads = target.reads(everything=True)
        target.feed(reads, [], 0.0)
        target.lanes.raise_floors(reads, target.lanes.horizons(()))
        assert 5 == target.lanes[0].floor
        target.lanes.rewind()
        reads = target.reads(everything=True)
        assert 1 == target.feed(reads, [entry(3)], 0.0)


def test_a_row_that_a_process_died_of_waits_once_however_many_are_behind_it():
    """Whenever its wait was over, what was parked behind it made it be read anew, and wait anew."""
    target = Window(1000, grace_seconds=3.0)
    target.lanes.add(0, 1, suspects=20)
    target.lanes[0].surveyed = True

    def rows() -> list[Entry]:
        head = entry(1, status="PUBLISHING", attempts=1, wait=-60.0)
        return [head, *(entry(number) for number in range(2, 200))]

    feed(target, *rows(), now=100.0)
    assert [] == target.take(20, 100.0)
    assert target.is_overflowing
    assert [] == target.take(20, 102.9)
    assert [] == target.take(20, 103.0)  # parked with the others, to be read in order again
    assert target.overflowed
    for row in target.to_park:
        target.settle(row)
    target.reset()
    feed(target, *rows(), now=103.1)
    assert [1] == numbers(target.take(20, 103.1))
