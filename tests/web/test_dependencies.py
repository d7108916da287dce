"""The unit of work of a request: what is committed, what is not, and for which tenant."""

from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse

from semel import Hub, InMemoryMessageBus, SqlAlchemyStorage, SQLAlchemyUnitOfWork
from semel.fastapi import unit_of_work
from semel.states import OutboxStatus


def client(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
def hub(semel_storage: SqlAlchemyStorage) -> Hub:
    return Hub("shop", storage=semel_storage, bus=InMemoryMessageBus())


async def stored(hub: Hub, tenant_id: str | None = None) -> int:
    stats = await hub.storage.outbox.stats(tenant_id=tenant_id)
    return stats.counts[OutboxStatus.NEW]


async def test_only_a_commit_lasts(hub: Hub) -> None:
    """A route that commits has stored; one that raises, or just returns, has not."""
    app = FastAPI()
    uow_of_request = Depends(unit_of_work(hub), scope="function")

    @app.post("/{how}")
    async def place(how: str, uow: SQLAlchemyUnitOfWork = uow_of_request) -> str:
        await uow.outbox.add("orders", {})
        if how == "commit":
            await uow.commit()
        elif how == "refuse":
            raise HTTPException(409, "no")
        elif how == "break":
            raise RuntimeError
        return how

    async with client(app) as http:
        counts, statuses = [], []
        for how in ("forget", "refuse", "break", "commit"):
            statuses.append((await http.post(f"/{how}")).status_code)
            counts.append(await stored(hub))

    assert [200, 409, 500, 200] == statuses
    assert [0, 0, 0, 1] == counts


@pytest.mark.parametrize("scope", ["function", "request"])
async def test_the_commit_is_before_the_answer(hub: Hub, scope: Any) -> None:
    """With either scope of FastAPI: whoever reads the first byte can rely on what was stored."""
    app = FastAPI()
    seen: list[int] = []

    @app.post("/")
    async def place(
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(unit_of_work(hub), scope=scope)],
    ) -> StreamingResponse:
        await uow.outbox.add("orders", {})
        await uow.commit()

        async def body() -> Any:
            seen.append(await stored(hub))
            yield b"done"

        return StreamingResponse(body())

    async with client(app) as http:
        assert "done" == (await http.post("/")).text

    assert [1] == seen


async def test_the_function_scope_frees_the_connection(hub: Hub) -> None:
    """With scope="function" no connection is held while an answer is streamed."""
    app = FastAPI()
    held: list[int] = []
    pool: Any = hub.storage.engine.pool

    @app.get("/")
    async def read(
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(unit_of_work(hub), scope="function")],
    ) -> StreamingResponse:
        await uow.outbox.add("orders", {})  # begins the transaction
        held.append(pool.checkedout())

        async def body() -> Any:
            held.append(pool.checkedout())
            yield b"done"

        return StreamingResponse(body())

    async with client(app) as http:
        await http.get("/")

    assert [1, 0] == held


async def test_the_tenant_is_a_dependency(hub: Hub) -> None:
    """Whatever says who calls says for which tenant: it may refuse, and it is documented."""
    app = FastAPI()

    def tenant(x_tenant: Annotated[str, Header()]) -> str:
        if x_tenant == "unknown":
            raise HTTPException(403, "Not your tenant.")
        return x_tenant

    @app.post("/")
    async def place(
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(unit_of_work(hub, tenant=tenant))],
    ) -> str:
        await uow.outbox.add("orders", {})
        await uow.commit()
        return uow.tenant_id

    async with client(app) as http:
        answers = [
            await http.post("/", headers=headers)
            for headers in (
                {"X-Tenant": "red"},
                {"X-Tenant": "unknown"},
                {"X-Tenant": "r" * 65},
                {},
            )
        ]

    assert [200, 403, 400, 422] == [answer.status_code for answer in answers]
    assert "red" == answers[0].json()
    assert (1, 0) == (await stored(hub, "red"), await stored(hub, "default"))
    assert "x-tenant" in str(app.openapi())


async def test_one_alias_is_one_unit_of_work(hub: Hub) -> None:
    """Dependencies of a request that share the alias share the transaction."""
    app = FastAPI()
    shared = unit_of_work(hub)

    async def helper(uow: Annotated[SQLAlchemyUnitOfWork, Depends(shared)]) -> int:
        return id(uow)

    @app.get("/")
    async def read(
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(shared)],
        other: Annotated[int, Depends(helper)],
    ) -> bool:
        return id(uow) == other

    async with client(app) as http:
        assert (await http.get("/")).json() is True
