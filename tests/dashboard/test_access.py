"""Every route against every role and tenant; what is not allowed changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.dashboard import Action
from semel.dashboard.views import DEEDS, VIEWS
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import IdempotencyKey
from tests.dashboard.rows import dead, handled
from tests.dashboard.site import PEOPLE, Site
from tests.dashboard.workload import keep_key

PATHS = [view.path for view in VIEWS] + [view.api_path for view in VIEWS]
WHOLE = {view.path for view in VIEWS if view.whole} | {v.api_path for v in VIEWS if v.whole}


def may(name: str, action: Action, tenant: str | None) -> bool:
    """The rule, written down once more."""
    actions, tenants = PEOPLE[name]
    return action in actions and (tenants is None or (tenant is not None and tenant in tenants))


async def rows(storage: SqlAlchemyStorage, tenant: str) -> None:
    """One of everything for a tenant."""
    for name in ("dead", "requeue", "release", "drop", "edit"):
        await dead(storage, f"{tenant}-{name}", tenant=tenant, key=f"{tenant}-key")
    await handled(storage, f"{tenant}-message", tenant_id=tenant)


@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("tenant", ["acme", "globex", None])
async def test_pages(site: Site, storage: SqlAlchemyStorage, name: str, tenant: str | None) -> None:
    """Each page and its data: for those who may view the tenant, and nobody else."""
    await rows(storage, "acme")
    await rows(storage, "globex")
    about = tenant or "globex"
    queries = {
        "/event": {"id": f"{about}-dead"},
        "/edit": {"id": f"{about}-dead"},
        "/message": {"id": f"{about}-message", "consumer": "shop", "of": about},
    }
    async with site.client(name) as client:
        for path in PATHS:
            page = path.removeprefix("/api")
            query = {**queries.get(page, {}), **({"tenant": tenant} if tenant else {})}
            answer = await client.get(path, params=query)

            if path in WHOLE:
                allowed = may(name, Action.VIEW, None)
            elif tenant is None and name.startswith("acme"):
                allowed = page not in queries  # its own tenant is taken; the row is another's
            else:
                allowed = may(name, Action.VIEW, tenant)
            if page == "/edit":
                allowed = allowed and name in ("admin", "acme-admin")
            assert allowed == (answer.status_code == 200), (path, answer.status_code)
            assert answer.status_code in (200, 403, 404)
            if name.startswith("acme"):
                assert "globex-key" not in answer.text


async def test_live_needs_the_right_to_view(site: Site) -> None:
    async with site.client("acme-viewer") as client:
        assert 403 == (await client.get("/live", params={"tenant": "globex"})).status_code
    async with site.client("nobody") as client:
        assert 403 == (await client.get("/live")).status_code


def deeds(tenant: str, key: IdempotencyKey) -> dict[str, tuple[Action, str | None, Any]]:
    """What each action needs, for which tenant, and a body that would do something."""
    of = {"where": {"tenant_id": tenant}}
    return {
        "/api/events/requeue": (Action.REQUEUE, tenant, {"ids": [f"{tenant}-requeue"]}),
        "/api/events/release": (Action.REQUEUE, tenant, {"ids": [f"{tenant}-release"]}),
        "/api/events/drop": (Action.DELETE, tenant, {"ids": [f"{tenant}-drop"]}),
        "/api/events/edit": (Action.EDIT, tenant, {"id": f"{tenant}-edit", "payload": "{}"}),
        "/api/jobs/requeue": (Action.REQUEUE, tenant, of),
        "/api/jobs/release": (Action.REQUEUE, tenant, of),
        "/api/jobs/drop": (Action.DELETE, tenant, of),
        "/api/jobs/replay": (Action.REPLAY, tenant, of),
        "/api/pauses/pause": (Action.PAUSE, tenant, {"tenant_id": tenant}),
        "/api/pauses/resume": (Action.PAUSE, tenant, {"tenant_id": tenant}),
        "/api/leases/release": (Action.PAUSE, None, {"owner": "somebody"}),
        "/api/inbox/forget": (
            Action.DELETE,
            tenant,
            {"message_id": f"{tenant}-message", "consumer_name": "shop", "tenant_id": tenant},
        ),
        "/api/idempotency/release": (
            Action.DELETE,
            tenant,
            {
                "tenant_id": tenant,
                "principal": key.principal,
                "method": key.method,
                "route": key.route,
                "key_hash": key.key_hash,
            },
        ),
    }


@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("tenant", ["acme", "globex"])
async def test_actions(site: Site, storage: SqlAlchemyStorage, name: str, tenant: str) -> None:
    """Each action for those who may; for others it is refused, and no row and no audit changes."""
    await rows(storage, tenant)
    key = await keep_key(site.hub, {"acme": 2, "globex": 1}[tenant])
    wanted = deeds(tenant, key)
    others = {"/api/jobs/cancel", "/api/preferences"}  # below, and in test_security.py
    assert {deed.path for deed in DEEDS} == set(wanted) | others

    async with site.client(name) as client:
        for path, (action, needed, body) in wanted.items():
            if may(name, action, needed):
                continue
            before = await picture(storage)
            answer = await client.post(path, json=body)

            assert answer.status_code in (403, 404), path
            assert before == await picture(storage)
        for path, (action, needed, body) in wanted.items():
            if may(name, action, needed):
                assert 200 == (await client.post(path, json=body)).status_code, path


async def picture(storage: SqlAlchemyStorage) -> str:
    """Everything that actions can change."""
    found = [
        [(row.id, row.status, row.lane) for row in await storage.outbox.search()],
        [row.message_id for row in await storage.inbox.search()],
        [row.key_hash for row in await storage.idempotency.search()],
        [(pause.topic, pause.tenant_id) for pause in await storage.outbox.pauses()],
        [row.action for row in await storage.audit.search()],
    ]
    return json.dumps(found)


@pytest.mark.parametrize("name", ["viewer", "acme-viewer", "acme-admin"])
async def test_actions_on_all_tenants(site: Site, storage: SqlAlchemyStorage, name: str) -> None:
    """Whoever may act for one tenant may not act for all of them."""
    await rows(storage, "globex")
    async with site.client(name) as client:
        for path in ("/api/jobs/requeue", "/api/jobs/drop", "/api/jobs/replay"):
            assert 403 == (await client.post(path, json={"where": {}})).status_code
        for body in ({}, {"topic": "orders"}):
            assert 403 == (await client.post("/api/pauses/pause", json=body)).status_code
        mixed = {"ids": ["globex-dead"]}
        assert (await client.post("/api/events/requeue", json=mixed)).status_code in (403, 404)


async def test_another_tenants_job_is_not_there(site: Site, storage: SqlAlchemyStorage) -> None:
    """It can neither be seen nor cancelled."""
    await rows(storage, "globex")
    async with site.client("admin") as admin, site.client("acme-admin") as acme:
        where = {"where": {"tenant_id": "globex"}}
        job = (await admin.post("/api/jobs/release", json=where)).json()

        assert 404 == (await acme.post("/api/jobs/cancel", json={"id": job["id"]})).status_code
        assert {"jobs": []} == (await acme.get("/api/jobs")).json()
        assert [job["id"]] == [each["id"] for each in (await admin.get("/api/jobs")).json()["jobs"]]
        assert 200 == (await admin.post("/api/jobs/cancel", json={"id": job["id"]})).status_code
