"""`Idempotency-Key` as a dependency, and in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request

from semel.asgi.call import idempotent_call
from semel.asgi.middleware import IdempotencyMiddleware
from semel.asgi.policy import HEADER, IdempotencyPolicy
from semel.asgi.problems import PROBLEM_JSON, PROBLEMS
from semel.errors import ConfigurationError
from semel.fastapi.dependencies import default_tenant

_REQUIRED = "x-semel-required"
_DESCRIPTION = (
    "A value that is unique to this operation, such as a UUID. Repeat a request with the same key "
    "to get the same answer without a second execution."
)
# Bare, or in quotation marks as in RFC 8941.
_PATTERN = r'^([!#-~][!-~]*|"([!#-\[\]-~]|\\["\\])([ !#-\[\]-~]|\\["\\])*")$'
_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": _PATTERN}
_PROBLEM_SCHEMA = {
    "title": "IdempotencyProblem",
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status"],
}


def idempotency_key(
    *,
    principal: Callable[..., Any],
    tenant: Callable[..., Any] = default_tenant,
    policy: IdempotencyPolicy | None = None,
) -> Callable[..., Awaitable[None]]:
    """Return a dependency that claims the request's key, for an app with `IdempotencyMiddleware`.

    *principal* is a dependency that authenticates the caller and returns a name or number of
    theirs; *tenant* returns the tenant. *policy* replaces that of the middleware.

    >>> @app.post("/orders", dependencies=[Depends(idempotency_key(principal=user_id))])
    ... async def place(order: Order, uow: Uow) -> Placed: ...              # doctest: +SKIP
    """
    required = True if policy is None else policy.required
    shown = {**_SCHEMA, _REQUIRED: required}

    async def claim(
        request: Request,
        who: Annotated[Any, Depends(principal)],
        tenant_id: Annotated[str, Depends(tenant)],
        _key: Annotated[
            str | None,
            Header(alias=HEADER, description=_DESCRIPTION, json_schema_extra=shown),
        ] = None,
    ) -> None:
        call = idempotent_call(request.scope)
        if call is None:
            raise ConfigurationError(
                "idempotency_key() needs the middleware that keeps the answers: "
                "app.add_middleware(IdempotencyMiddleware, storage=storage)"
            )
        if who is not None and not isinstance(who, str | int):
            raise ConfigurationError(
                "principal= of idempotency_key() returns the caller's name or number, not a "
                f"{type(who).__name__}"
            )
        await call.claim(
            principal=None if who is None else str(who),
            tenant_id=tenant_id,
            route=_template(request),
            policy=policy,
        )

    return claim


def _template(request: Request) -> str:
    route = request.scope.get("route")
    root: str = request.scope.get("root_path", "")
    return root + str(getattr(route, "path", None) or request.scope["path"])


def describe_idempotency(app: FastAPI) -> None:
    """Let the OpenAPI document of *app* show the key and its problems on protected routes."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = original()
            _describe_middleware(app, schema)
            for operation in _operations(schema):
                _describe(operation, schema)
        return original()

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in schema.get("paths", {}).values():
        yield from (operation for operation in path.values() if isinstance(operation, dict))


def _describe(operation: dict[str, Any], schema: dict[str, Any]) -> None:
    found = [p for p in operation.get("parameters", ()) if p["name"] == HEADER]
    if not found:
        return
    required = found[0]["schema"].pop(_REQUIRED, None)
    if required is None:
        return  # not ours
    found[0]["required"] = required
    found[0]["schema"] = dict(_SCHEMA)
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas["IdempotencyProblem"] = _PROBLEM_SCHEMA  # the application may have a Problem of its own
    for problem in PROBLEMS:
        answer = operation.setdefault("responses", {}).setdefault(str(problem.status), {})
        answer.setdefault("description", problem.title)
        content = answer.setdefault("content", {})
        content[PROBLEM_JSON] = {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}


def _describe_middleware(app: FastAPI, schema: dict[str, Any]) -> None:
    """Add the header to the routes that the middleware itself protects."""
    for added in app.user_middleware:
        kind: Any = added.cls
        options: dict[str, Any] = dict(added.kwargs)
        if kind is not IdempotencyMiddleware:
            continue
        default: IdempotencyPolicy = options.get("policy") or IdempotencyPolicy()
        routes: Any = options.get("routes", ())
        methods: Collection[str] = options.get("methods", ("POST", "PATCH"))
        for template in routes:
            policy = routes[template] if isinstance(routes, dict) else default
            for method in methods:
                operation = schema.get("paths", {}).get(template, {}).get(method.lower())
                if operation is not None:
                    operation.setdefault("parameters", []).append(
                        {
                            "name": HEADER,
                            "in": "header",
                            "description": _DESCRIPTION,
                            "schema": {**_SCHEMA, _REQUIRED: policy.required},
                        }
                    )
