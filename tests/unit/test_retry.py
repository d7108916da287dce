"""When to try again, and when to give up."""

import math

import pytest
from hypothesis import given, strategies as st

from semel.errors import ConfigurationError
from semel.retry import RetryPolicy


def test_delays_double_up_to_the_cap():
    """Without jitter the delays are the powers of the factor, capped."""
    policy = RetryPolicy(base_seconds=1, max_seconds=10, jitter=False)
    assert [1, 2, 4, 8, 10, 10] == [policy.delay(n) for n in range(1, 7)]


def test_full_jitter():
    """With jitter a delay is anywhere between zero and the ceiling."""
    policy = RetryPolicy(base_seconds=8, max_seconds=8)
    delays = [policy.delay(1) for _ in range(500)]
    assert min(delays) < 2
    assert max(delays) > 6
    assert all(0 <= delay <= 8 for delay in delays)


def test_gives_up():
    """The last attempt is the max_attempts-th."""
    policy = RetryPolicy(max_attempts=3)
    assert [False, False, True, True] == [policy.gives_up(n) for n in (1, 2, 3, 4)]


def test_horizon():
    """All attempts together take at most the sum of the ceilings."""
    assert RetryPolicy(max_attempts=4, base_seconds=1, max_seconds=4).horizon() == 11


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"base_seconds": -1},
        {"base_seconds": 2, "max_seconds": 1},
        {"factor": 0.5},
        {"base_seconds": math.nan},
        {"max_seconds": math.nan},
        {"factor": math.nan},
    ],
)
def test_bad_settings(options):
    """Settings that make no sense are refused at once."""
    with pytest.raises(ConfigurationError, match="RetryPolicy"):
        RetryPolicy(**options)


@given(
    attempts=st.integers(-5, 10**9),
    base=st.floats(0, 1e6),
    factor=st.floats(1, 1e300),
    jitter=st.booleans(),
)
def test_delay_stays_in_bounds(attempts, base, factor, jitter):
    """Whatever the settings and the count, a delay is between zero and the cap."""
    policy = RetryPolicy(base_seconds=base, max_seconds=1e6, factor=factor, jitter=jitter)
    assert 0 <= policy.delay(attempts) <= 1e6
