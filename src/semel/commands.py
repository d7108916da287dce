"""One command, one handler, one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from semel.binding import Handler, call, name_of, takes_second
from semel.envelope import DEFAULT_TENANT
from semel.errors import ConfigurationError, UnknownCommandError
from semel.idempotency.functions import SYSTEM, Idempotency, returned
from semel.observer import NullObserver, Operation
from semel.protocols import Observer, Storage, UnitOfWork

H = TypeVar("H", bound=Handler)


class CommandBus:
    """Finds the handler of a command by its type and runs it in a unit of work.

    >>> commands = CommandBus()
    >>> @commands.handler(str)
    ... async def shout(command: str) -> str:
    ...     return command.upper()
    """

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        idempotency: Idempotency | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._storage = storage
        self._idempotency = idempotency
        if idempotency is None and storage is not None:
            self._idempotency = Idempotency(storage)
        self._observer = observer or NullObserver()
        self._handlers: dict[type[Any], tuple[Handler, bool]] = {}

    def handler(self, command_type: type[Any]) -> Callable[[H], H]:
        """Register the one handler `(command)` or `(command, uow)` of *command_type*."""
        if not isinstance(command_type, type):
            raise ConfigurationError(
                "@commands.handler(...) needs the type of the command, such as a dataclass"
            )

        def register(handler: H) -> H:
            known = self._handlers.get(command_type)
            if known is not None:
                raise ConfigurationError(
                    f"{command_type.__qualname__} has two handlers, {name_of(known[0])} and "
                    f"{name_of(handler)}: a command has one"
                )
            self._handlers[command_type] = (handler, takes_second(handler))
            return handler

        return register

    async def execute(
        self,
        command: Any,
        uow: UnitOfWork | None = None,
        *,
        tenant_id: str = DEFAULT_TENANT,
        idempotency_key: str | None = None,
        principal: str = SYSTEM,
    ) -> Any:
        """Run the command's handler and return its result.

        In *uow* the effects commit with it, whoever owns it. Without it a unit of work is opened
        for this command and committed, or rolled back if the handler raises.
        With *idempotency_key* the handler runs once: whoever executes the command again with that
        key, as the same *principal*, gets the first result. It must be JSON, or become the type
        that the handler is annotated to return.
        """
        found = self._handlers.get(type(command))
        if found is None:
            names = ", ".join(sorted(t.__qualname__ for t in self._handlers)) or "none"
            raise UnknownCommandError(
                f"no handler for {type(command).__qualname__}; registered: {names}"
            )
        labels = {"command": type(command).__qualname__}
        with self._observer.observe(Operation(name="command", labels=labels)):
            if idempotency_key is None:
                return await self._run(*found, command, uow, tenant_id)
            if self._idempotency is None:
                raise ConfigurationError(
                    "this CommandBus has no storage to keep keys in: make it with "
                    "CommandBus(storage)"
                )
            handler, takes_uow = found

            async def handle(own: UnitOfWork) -> Any:
                return await call(handler, command, own, takes_uow=takes_uow)

            return await self._idempotency.run(
                idempotency_key,
                handle,
                name=name_of(type(command)),
                arguments=command,
                returns=returned(handler),
                tenant_id=tenant_id if uow is None else uow.tenant_id,
                principal=principal,
                uow=uow,
            )

    async def _run(
        self,
        handler: Handler,
        takes_uow: bool,
        command: Any,
        uow: UnitOfWork | None,
        tenant_id: str,
    ) -> Any:
        if uow is not None:
            return await call(handler, command, uow, takes_uow=takes_uow)
        if self._storage is None:
            raise ConfigurationError(
                "this CommandBus has no storage to open a unit of work: pass one to execute(), "
                "or make it with CommandBus(storage)"
            )
        async with self._storage.unit_of_work(tenant_id=tenant_id) as own:
            result = await call(handler, command, own, takes_uow=takes_uow)
            await own.commit()
            return result
