"""Work that a cancellation does not cut off."""

from __future__ import annotations

import asyncio

import pytest

from semel.tasks import unbroken


async def test_work_ends_before_its_caller_does():
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        begun.set()
        await may_end.wait()
        ended = True

    caller = asyncio.create_task(unbroken(work()))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended


async def test_an_error_after_the_cancellation_is_told(caplog: pytest.LogCaptureFixture):
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        raise ValueError("too late")

    caller = asyncio.create_task(unbroken(work()))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert "ValueError: too late" in caplog.text


async def test_results_and_errors_pass():
    async def work(*, fails: bool) -> int:
        if fails:
            raise KeyError
        return 1

    assert 1 == await unbroken(work(fails=False))
    with pytest.raises(KeyError):
        await unbroken(work(fails=True))
