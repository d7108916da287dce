"""What is wrong with a request, as `application/problem+json` (RFC 9457), without internals."""

from __future__ import annotations

import json
from dataclasses import dataclass

from semel.states import Answer

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One kind of problem; its type is `urn:semel:problem:<name>`."""

    name: str
    status: int
    title: str
    detail: str

    @property
    def type(self) -> str:
        """The identifier by which clients tell problems apart."""
        return f"urn:semel:problem:{self.name}"

    def answer(self, *, retry_after: int | None = None) -> Answer:
        """Return the answer that tells it."""
        document = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        headers = [("content-type", PROBLEM_JSON), ("cache-control", "no-store")]
        if retry_after is not None:
            headers.append(("retry-after", str(retry_after)))
        return Answer(status_code=self.status, headers=headers, body=json.dumps(document).encode())


KEY_MISSING = Problem(
    name="idempotency-key-missing",
    status=400,
    title="Idempotency-Key is missing",
    detail="This operation needs an Idempotency-Key header with a value that is unique to it.",
)
KEY_MALFORMED = Problem(
    name="idempotency-key-malformed",
    status=400,
    title="Idempotency-Key is malformed",
    detail="Send one Idempotency-Key header with 1 to 255 printable ASCII characters, "
    "without white space unless in quotation marks.",
)
INCOMPLETE = Problem(
    name="request-incomplete",
    status=400,
    title="The request is incomplete",
    detail="The connection ended before the body did. Nothing was executed.",
)
TENANT_INVALID = Problem(
    name="tenant-invalid",
    status=400,
    title="The tenant of this request is not a valid one",
    detail="Nothing was executed.",
)
CALLER_UNKNOWN = Problem(
    name="caller-unknown",
    status=401,
    title="The caller is not known",
    detail="An Idempotency-Key belongs to its caller: authenticate first.",
)
IN_FLIGHT = Problem(
    name="request-in-flight",
    status=409,
    title="A request with this Idempotency-Key is being executed",
    detail="Repeat the request later with the same key to get its answer.",
)
NOT_KEPT = Problem(
    name="answer-not-kept",
    status=409,
    title="The answer to this Idempotency-Key was not kept",
    detail="The request was executed once. Its answer was too large or a stream, and cannot be "
    "repeated. Repeating the request will not execute it again.",
)
TOO_LARGE = Problem(
    name="request-too-large",
    status=413,
    title="The request is too large for an Idempotency-Key",
    detail="The body must be compared with that of a repetition, and is longer than allowed.",
)
MISMATCH = Problem(
    name="idempotency-key-reused",
    status=422,
    title="Idempotency-Key was used with another request",
    detail="The key belongs to a request with another path, query or body. Take a new key.",
)
UNAVAILABLE = Problem(
    name="idempotency-unavailable",
    status=503,
    title="Idempotency-Keys cannot be checked now",
    detail="Nothing was executed, or everything was undone. Repeat the request later with the "
    "same key.",
)

#: By status, in the order in which documents list them.
PROBLEMS = (
    KEY_MISSING,
    KEY_MALFORMED,
    INCOMPLETE,
    TENANT_INVALID,
    CALLER_UNKNOWN,
    IN_FLIGHT,
    NOT_KEPT,
    TOO_LARGE,
    MISMATCH,
    UNAVAILABLE,
)
