"""A fake schema registry: the few requests that a client needs, answered from memory.

It is no registry: nothing is checked for compatibility, and nothing is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeRegistry:
    """Schemas by id and by subject; while `broken` it answers 503."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.broken = False
        self.requests: list[str] = []
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: str) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.broken:
            return 503, {"error_code": 50301, "message": "the fake is broken on demand"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1])
            if number > len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, {"schema": self.schemas[number - 1], "schemaType": "AVRO"}
        if found := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            return 200, {"id": self.register(unquote(found[1]), body["schema"])}
        if found := re.fullmatch(r"/subjects/([^/]+)", path):
            subject, schema = unquote(found[1]), body["schema"]
            versions = self.subjects.get(subject, [])
            for version, number in enumerate(versions, 1):
                if self.schemas[number - 1] == schema:
                    told = {"subject": subject, "version": version, "id": number}
                    return 200, {**told, "schema": schema}
            return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 404, "message": "the fake does not know this request"}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run a fake registry on a free port."""
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            path = urlsplit(self.path).path
            fake.requests.append(f"{self.command} {path}")
            status, told = fake.answer(self.command, path, body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815  so the standard library calls it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
