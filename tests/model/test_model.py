"""The protocols hold in every state that they can reach, and would not with any known bug."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.cases import BUGS, LARGE, SOUND, Case
from tests.model.explore import Protocol, explore
from tests.model.world import Outbox

pytestmark = pytest.mark.timeout(
    600
)  # a few seconds each, on a machine that has nothing else to do


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)
def test_the_protocol_holds(case: Case) -> None:
    result = case.explore()
    assert result.violation is None, str(result)
    assert result.ends


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.name)
def test_a_known_bug_is_found(case: Case) -> None:
    """With the shortest way to it."""
    result = case.explore()
    print(result)
    assert result.violation is not None
    assert result.violation.startswith(f"{case.violation}:"), str(result)
    assert result.way


def test_every_switch_of_the_outbox_is_used() -> None:
    """A bug that no case switches on would look as if it were covered."""
    sound = [case.world for case in (*SOUND, *LARGE) if isinstance(case.world, Outbox)]
    broken = [case.world for case in BUGS if isinstance(case.world, Outbox)]
    for name in Outbox.__dataclass_fields__:
        assert 1 < len({getattr(world, name) for world in (*sound, *broken, Outbox())}), name


def _counting(state: int) -> Iterator[tuple[str, int]]:
    if state < 5:
        yield "one more", state + 1
    if state < 3:
        yield "three more", state + 3


@pytest.mark.parametrize(
    ("broken", "stuck", "violation", "way"),
    [
        (9, 9, None, []),
        (4, 9, "four", ["one more", "three more"]),
        (0, 9, "four", []),
        (9, 5, "five", ["three more", "one more", "one more"]),
    ],
)
def test_the_shortest_way_is_told(
    broken: int, stuck: int, violation: str | None, way: list[str]
) -> None:
    result = explore(
        Protocol(
            start=0,
            steps=_counting,
            broken=lambda state: "four" if state == broken else None,
            stuck=lambda state: "five" if state == stuck else None,
        )
    )
    assert violation == result.violation
    assert sorted(way) == sorted(result.way)
