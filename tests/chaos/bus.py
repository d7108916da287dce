"""The bus of the relays: writes down what it sends, and now and then refuses or forgets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from tests.chaos.plan import TROUBLE, History, Post

_RATE = 0.01


class ShakyBus:
    """Before a real bus: one message in a hundred is rejected, or sent but called unknown.

    `Refused` ones are refused for good while there is trouble. After a failure no later message
    of the key is sent, as the protocol says.
    """

    def __init__(self, bus: Any, post: Post, history: History) -> None:
        self._bus = bus
        self._history = history
        self._chance = random.Random(post.seed)
        self._trouble = post.folder / TROUBLE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        ids = [message.event_id for message in messages]
        self._history.write("invoke", "publish", value={"ids": ids})
        errors, unknown = self._spoil(messages)
        sent = [n for n in range(len(messages)) if errors[n] is None]
        try:
            results = await self._bus.publish_many([messages[n] for n in sent]) if sent else []
        except BaseException as error:
            raised = {ids[n]: "info" if n in sent else "fail" for n in range(len(ids))}
            value = {"outcomes": raised, "error": type(error).__name__}
            self._history.write("info", "publish", value=value)
            raise
        for n, result in zip(sent, results, strict=True):
            errors[n] = result
            if n in unknown and result is None:
                errors[n] = unknown[n]
        outcomes = {ids[n]: _word(errors[n]) for n in range(len(ids))}
        kind = "ok" if set(outcomes.values()) == {"ok"} else "info"
        self._history.write(kind, "publish", value={"outcomes": outcomes})
        return errors

    def _spoil(
        self, messages: Sequence[MessageEnvelope]
    ) -> tuple[list[PublishError | None], dict[int, PublishError]]:
        """Choose what is not sent at all, and what is sent but not confirmed."""
        errors: list[PublishError | None] = []
        unknown: dict[int, PublishError] = {}
        ended: dict[Any, PublishError] = {}
        trouble = self._trouble.exists()
        for n, message in enumerate(messages):
            key = (message.tenant_id, message.order_key or message.event_id)
            if key not in ended:
                if trouble and message.event_type == "Refused":
                    ended[key] = PublishError(
                        "refused, as long as there is trouble", kind="permanent"
                    )
                elif self._chance.random() < _RATE:
                    ended[key] = PublishError("rejected by chance")
                elif self._chance.random() < _RATE:
                    ended[key] = unknown[n] = PublishError("forgotten by chance", kind="unknown")
                    errors.append(None)
                    continue
            errors.append(ended.get(key))
        return errors, unknown


def _word(error: PublishError | None) -> str:
    if error is None:
        return "ok"
    return "info" if error.kind in ("unknown", "destination") else "fail"
