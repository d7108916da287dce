"""The example as its users start it: a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx2

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Shop:
    """`python -m examples.shop`, which can be stopped and started again on the same port."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "shop.log"
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SHOP_")},
            "SHOP_DATABASE_URL": f"sqlite+aiosqlite:///{folder / 'shop.db'}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.shop", "--port", str(self.port)],
                cwd=self._log.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"the shop does not open:\n{self.log}")
            time.sleep(0.1)
        return self

    def stop(self) -> float:
        """End it as a deployment does; return how many seconds it took."""
        assert self._process is not None
        began = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        assert code in (0, -15), f"it ended with {code}:\n{self.log}"
        return time.monotonic() - began

    @property
    def log(self) -> str:
        return self._log.read_text()

    def order(self, **fields: Any) -> dict[str, Any]:
        """Place an order through the API."""
        order = {"customer": "Ada", "item": "tea", "quantity": 2, **fields}
        answer = httpx2.post(f"{self.url}/orders", json=order, headers=key(), timeout=PATIENCE)
        assert 201 == answer.status_code, answer.text
        return dict(answer.json())

    def settled(self, order_id: str) -> dict[str, Any]:
        """Return the order once the other services have dealt with it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = httpx2.get(f"{self.url}/orders/{order_id}", timeout=PATIENCE).json()
            if found["status"] != "placed":
                return dict(found)
            assert time.monotonic() < deadline, f"nobody deals with the order:\n{self.log}"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def _is_ready(self) -> bool:
        try:
            return bool(httpx2.get(f"{self.url}/health/readyz", timeout=5).is_success)
        except httpx2.TransportError:
            return False


def key() -> dict[str, str]:
    """A fresh idempotency key."""
    return {"Idempotency-Key": os.urandom(16).hex()}
