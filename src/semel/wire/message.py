"""A message on the wire, and the names that it uses there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from semel.errors import WireError
from semel.serializers import JSON

Mode = Literal["binary", "structured", "raw"]

MODES: tuple[str, ...] = get_args(Mode)
STRUCTURED = "application/cloudevents+json"
MAX_HEADERS = 128
MAX_HEADER_BYTES = 32 * 1024

RESERVED = frozenset(
    (
        *("specversion", "id", "source", "type", "subject", "time", "dataschema"),
        *("datacontenttype", "data", "partitionkey", "tenantid", "aggregatetype", "routingkey"),
        *("schemaversion", "correlationid", "causationid", "traceparent", "tracestate"),
    )
)
TRACE = ("traceparent", "tracestate")
RENAMED = {"correlation_id": "correlationid", "causation_id": "causationid"}


class WireMessage(NamedTuple):
    """What goes over the network: bytes, and headers that anybody may have written."""

    topic: str
    key: str | None
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        # Neither values of headers nor the body: a repr ends up in logs.
        return (
            f"WireMessage(topic={self.topic!r}, headers={sorted(self.headers)}, "
            f"body={len(self.body)} bytes)"
        )


def check_limits(headers: Mapping[str, str]) -> None:
    """Raise `WireError` for more headers than semel reads."""
    if len(headers) > MAX_HEADERS:
        raise WireError(f"the message has {len(headers)} headers, at most {MAX_HEADERS} are read")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise WireError("the message has a header that is not text")
        size += len(name) + len(value)
        if not value.isascii():
            size += len(value.encode("utf-8", "surrogatepass")) - len(value)
    if size > MAX_HEADER_BYTES:
        raise WireError(f"the headers are {size} bytes in all, at most {MAX_HEADER_BYTES} are read")


def is_json(content_type: str) -> bool:
    """Tell whether a content type is JSON, or built on it."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")
