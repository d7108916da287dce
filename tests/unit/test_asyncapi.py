"""The AsyncAPI document of a hub, against the official JSON Schema and by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict
from uuid import UUID

import jsonschema_rs
import msgspec
import pydantic
import pytest

from semel import (
    Hub,
    InMemoryMessageBus,
    MessageEnvelope,
    OutboxProjectorConfig,
    SqlAlchemyStorage,
    TopicPolicy,
)
from semel.asyncapi import describe_hub

_SPECIFICATION = "@asyncapi/specs@6.11.1"


class Colour(StrEnum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1
    parent: Line | None = None


@dataclass
class Placed:
    order_id: UUID
    at: datetime
    lines: list[Line]
    colour: Colour = Colour.RED
    kind: Literal["web", "shop"] = "web"
    notes: dict[str, str] = field(default_factory=dict)


class Other:
    @dataclass
    class Placed:
        other: int


class Address(pydantic.BaseModel):
    street: str


class Moved(pydantic.BaseModel):
    address: Address


class Paid(msgspec.Struct):
    amount: int
    line: Line


class Cancelled(TypedDict):
    reason: str


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    storage = SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    config = OutboxProjectorConfig(topics={"mails": TopicPolicy()})
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus(), config=config)
    hub.on("orders", "OrderPlaced")(placed)
    hub.on("orders", "OrderPlaced")(log)
    hub.on("orders", "Cancelled")(cancelled)
    hub.on("orders/paid #1", "Paid")(paid)
    hub.on("customers", "Moved")(moved)
    return hub


def placed(order: Placed) -> None: ...
def log(event: MessageEnvelope) -> None: ...
def cancelled(order: Cancelled) -> None: ...
def paid(payment: Paid) -> None: ...
def moved(event: Moved) -> None: ...
def again(order: Other.Placed) -> None: ...


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The schema that the AsyncAPI project publishes."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm, which brings the official schema")
    folder = tmp_path_factory.mktemp("asyncapi")
    done = subprocess.run(
        [npm, "pack", "--silent", _SPECIFICATION],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.skip("the official schema cannot be fetched")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/schemas/3.0.0.json")
        assert member is not None
        return json.load(member)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def follow(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_the_official_schema_accepts_it(hub: Hub, official: Any) -> None:
    document = describe_hub(hub, version="1.2.3")
    validator = jsonschema_rs.validator_for(official)
    assert [] == [error.message for error in validator.iter_errors(document)]
    document["operations"]["receive.orders"]["action"] = "get"
    assert not validator.is_valid(document)


def test_every_reference_leads_somewhere(hub: Hub) -> None:
    document = json.loads(json.dumps(describe_hub(hub)))
    found = set(references(document))
    assert len(found) > 10
    for reference in found:
        assert follow(document, reference) is not None


def test_what_is_received_and_sent(hub: Hub) -> None:
    """Topics are channels, consumers receive, dead letters and topics with a policy are sent."""
    document = describe_hub(hub, version="1.2.3", title="The shop")
    assert {"title": "The shop", "version": "1.2.3"} == document["info"]
    assert {
        *("orders", "orders.dead", "orders/paid #1", "orders/paid #1.dead"),
        *("customers", "customers.dead", "mails"),
    } == {channel["address"] for channel in document["channels"].values()}
    actions = {name: item["action"] for name, item in document["operations"].items()}
    assert "receive" == actions["receive.orders"]
    assert "send" == actions["send.mails"]
    assert {"OrderPlaced", "Cancelled"} == set(document["channels"]["orders"]["messages"])


def test_payloads_are_those_of_the_annotations(hub: Hub) -> None:
    """Dataclasses, pydantic models, msgspec structs and typed dicts; the schema does its work."""
    document = describe_hub(hub)
    messages = document["components"]["messages"]

    def accepts(name: str, payload: Any) -> bool:
        schema = {**messages[name]["payload"], "components": document["components"]}
        return bool(jsonschema_rs.validator_for(schema).is_valid(payload))

    order = {"order_id": "x", "at": "2026-11-16T00:00:00Z", "lines": [{"sku": "a"}]}
    assert accepts("orders.OrderPlaced", order)
    assert not accepts("orders.OrderPlaced", {**order, "lines": [{}]})
    assert not accepts("orders.OrderPlaced", {**order, "kind": "fax"})
    assert accepts("orders.Cancelled", {"reason": "why"})
    assert not accepts("orders.Cancelled", {})
    assert accepts("customers.Moved", {"address": {"street": "s"}})
    assert not accepts("customers.Moved", {"address": {}})
    paid = next(name for name in messages if name.endswith("Paid"))
    assert accepts(paid, {"amount": 1, "line": {"sku": "a"}})
    assert not accepts(paid, {"amount": "1", "line": {"sku": "a"}})


def test_types_of_the_same_name_stay_apart(hub: Hub) -> None:
    """The second one goes by its full name."""
    hub.on("again", "OrderPlaced")(again)
    document = describe_hub(hub)
    schemas = document["components"]["schemas"]
    first = document["components"]["messages"]["orders.OrderPlaced"]["payload"]["$ref"]
    second = document["components"]["messages"]["again.OrderPlaced"]["payload"]["$ref"]
    assert first != second
    assert ["other"] == schemas[second.rpartition("/")[2]]["required"]


def test_topics_that_look_alike_stay_apart(hub: Hub) -> None:
    """An identifier has fewer characters than a topic may have."""
    hub.on("a/b", "X")(log)
    hub.on("a_b", "X")(log)
    addresses = [channel["address"] for channel in describe_hub(hub)["channels"].values()]
    assert {"a/b", "a_b"} <= set(addresses)
    assert len(addresses) == len(set(addresses))
