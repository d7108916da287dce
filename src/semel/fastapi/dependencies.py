"""A unit of work for each request."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException
from fastapi.requests import HTTPConnection

from semel.asgi.call import idempotent_call
from semel.envelope import DEFAULT_TENANT, check_tenant
from semel.errors import InvalidMessageError
from semel.hub import Hub
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork

UnitOfWorkDependency = Callable[..., AsyncIterator[SQLAlchemyUnitOfWork]]


async def default_tenant() -> str:
    """Return the tenant of a service that has one."""
    return DEFAULT_TENANT


def unit_of_work(hub: Hub, *, tenant: Callable[..., Any] = default_tenant) -> UnitOfWorkDependency:
    """Return a dependency that gives each request a unit of work of *hub*.

    *tenant* is a dependency, too, which returns the tenant: after authentication, from whatever
    the request says. What the route does not commit is rolled back. In a request with an
    idempotency key, the commit waits for the answer and includes it.

    >>> Uow = Annotated[SQLAlchemyUnitOfWork,
    ...                 Depends(unit_of_work(hub), scope="function")]        # doctest: +SKIP
    """

    async def dependency(
        connection: HTTPConnection,
        tenant_id: Annotated[str, Depends(tenant)],
    ) -> AsyncIterator[SQLAlchemyUnitOfWork]:
        try:
            chosen = check_tenant(tenant_id)
        except InvalidMessageError:
            raise HTTPException(400, "The tenant of this request is not a valid one.") from None
        async with hub.unit_of_work(tenant_id=chosen) as uow:
            call = idempotent_call(connection.scope)
            if call is not None:
                call.adopt(uow)
            yield uow

    return dependency
