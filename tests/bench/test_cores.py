"""The benchmark says who used the cores."""

from __future__ import annotations

import time

from benchmarks.cores import Usage


def test_work_is_counted_and_told():
    usage = Usage()
    with usage.watch():
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
    assert 0.2 < usage.by_program["relay"] < 5
    assert usage.available >= 0.3
    assert "% of the cores were busy" in str(usage)
    assert "relay " in str(usage)


def test_what_others_use_is_theirs():
    usage = Usage()
    usage.by_program.update({"relay": 3.0, "postgres": 4.0, "idler": 0.01})
    usage.available = 10.0
    assert "70% of the cores were busy: postgres 40%, relay 30%." == str(usage)
