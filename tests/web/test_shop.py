"""The example as a program: what it promises in its document, and that the services agree."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.services import Database
from tests.web.shop import PATIENCE, Shop, key

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


def stock(shop: Shop) -> dict[str, int]:
    found = httpx2.get(f"{shop.url}/stock", timeout=PATIENCE).json()
    return {row["item"]: row["available"] for row in found}


def check_books(shop: Shop, count: int = 8) -> None:
    """Place orders, and compare what orders, stock and payments say in the end."""
    before = stock(shop)
    orders = [
        shop.order(item=item, quantity=quantity)
        for item, quantity in [("tea", 2), ("coffee", 9), ("cocoa", 1), ("tea", 5)] * (count // 4)
    ]
    settled = [shop.settled(order["id"]) for order in orders]

    assert {"paid": 3 * count // 4, "declined": count // 4} == Counter(
        order["status"] for order in settled
    )
    sold = Counter[str]()
    for order in settled:
        sold[order["item"]] += order["quantity"] if order["status"] == "paid" else 0
    expected = {item: amount - sold[item] for item, amount in before.items()}
    # What was not paid goes back to the shelf a moment later.
    for _ in range(300):
        if stock(shop) == expected:
            return
        threading.Event().wait(0.1)
    assert expected == stock(shop)


def test_services_agree(shop: Shop) -> None:
    """On SQLite without a broker: every order is paid or declined, and the shelves are right."""
    check_books(shop)


def test_out_of_stock(shop: Shop) -> None:
    """What is not there is not sold."""
    full, rest = divmod(stock(shop)["cocoa"], 8)
    orders = [shop.order(item="cocoa", quantity=8) for _ in range(full + 1)]

    outcomes = Counter(shop.settled(order["id"])["status"] for order in orders)
    assert {"paid": full, "out of stock": 1} == outcomes
    assert rest == stock(shop)["cocoa"]


def test_a_repeated_request_is_one_order(shop: Shop) -> None:
    """The same key gives the same answer and no second order; without a key there is none."""
    order = {"customer": "Once", "item": "tea", "quantity": 1}
    headers = key()
    first, again = (
        httpx2.post(f"{shop.url}/orders", json=order, headers=headers, timeout=PATIENCE)
        for _ in range(2)
    )
    other = httpx2.post(f"{shop.url}/orders", json={**order, "quantity": 2}, headers=headers)
    missing = httpx2.post(f"{shop.url}/orders", json=order)
    orders = httpx2.get(f"{shop.url}/orders?limit=100", timeout=PATIENCE).json()

    assert [201, 201, 422, 400] == [r.status_code for r in (first, again, other, missing)]
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]
    assert 1 == sum(found["customer"] == "Once" for found in orders)


def test_it_stops_although_a_stream_is_open(tmp_path: Path) -> None:
    """Open streams do not keep a deployment waiting: the server ends them, and itself."""
    shop = Shop(tmp_path).start()
    with httpx2.stream("GET", f"{shop.url}/live", timeout=PATIENCE) as answer:
        parts = answer.iter_text()
        assert "retry" in next(parts)
        stopper = threading.Thread(target=shop.stop)
        stopper.start()
        rest = "".join(parts)  # until the end that the server sends
        stopper.join(PATIENCE)

    assert not stopper.is_alive()
    assert "id: " in rest
    assert "ERROR" not in shop.log
    assert "Traceback" not in shop.log


@pytest.mark.kafka
def test_on_postgresql_and_kafka(tmp_path: Path, postgres: Database, service) -> None:
    """The same shop by two settings; what Kafka carries is streamed, too."""
    settings = {
        "SHOP_DATABASE_URL": postgres.url,
        "SHOP_BUS_URL": service("kafka"),
        "SHOP_TOPICS": f"shop-{uuid4().hex[:8]}",
    }
    with Shop(tmp_path, **settings) as shop:
        with httpx2.stream("GET", f"{shop.url}/live", timeout=PATIENCE) as answer:
            order = None
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    place = line.removeprefix("id: ")
                    order = order or shop.order()
                elif "OrderChanged" in line:
                    break
        assert order is not None
        assert order["id"] in line
        shop.stop()
        shop.start()
        missed = shop.settled(shop.order()["id"])
        resumed = httpx2.URL(f"{shop.url}/live", params={"last_event_id": place})
        with httpx2.stream("GET", resumed, timeout=PATIENCE) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if "OrderChanged" in line and missed["id"] in line:
                    break
        assert "event: lost" not in lines
        assert any("OrderPlaced" in line and missed["id"] in line for line in lines)
        check_books(shop, count=4)


def test_settings() -> None:
    """Two variables, and nothing else, decide on what the shop runs."""
    from examples.shop.settings import Settings

    assert "database://" == Settings.from_env(environ={}).bus_url
    given = {"SHOP_DATABASE_URL": "a://", "SHOP_BUS_URL": "b://", "HOME": os.sep}
    found = Settings.from_env(environ=given)
    assert ("a://", "b://") == (found.database_url, found.bus_url)
