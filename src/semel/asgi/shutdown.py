"""Hear of the end of the process before the server waits for its open connections."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_exit_signal(callback: Callable[[], None]) -> Iterator[None]:
    """While inside, call *callback* in the event loop at SIGTERM or SIGINT, before the old handler.

    Servers wait for open answers before they end the application's lifespan: an answer that
    never ends by itself would keep them waiting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)
        old = before[signal.Signals(number)]
        if callable(old):
            old(number, frame)
        elif old is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    # What was installed by other means than Python's is not ours to replace.
    mine = [number for number in _SIGNALS if before[number] is not None]
    for number in mine:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in mine:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
