"""librdkafka's mock cluster: a broker that answers with the errors that a test asks for."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka
import pytest

PRODUCE = 0
_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "rd_kafka_conf_new": (_POINTER,),
    "rd_kafka_new": (_POINTER, _INT, _POINTER, _TEXT, ctypes.c_size_t),
    "rd_kafka_destroy": (None, _POINTER),
    "rd_kafka_mock_cluster_new": (_POINTER, _POINTER, _INT),
    "rd_kafka_mock_cluster_destroy": (None, _POINTER),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, _POINTER),
    "rd_kafka_mock_topic_create": (_INT, _POINTER, _TEXT, _INT, _INT),
    "rd_kafka_mock_push_request_errors_array": (
        *(None, _POINTER, ctypes.c_int16, ctypes.c_size_t),
        ctypes.POINTER(_INT),
    ),
}


def _load() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs"):
        for path in folder.glob("librdkafka[.-]*"):
            library = ctypes.CDLL(str(path))
            for name, (result, *arguments) in _FUNCTIONS.items():
                getattr(library, name).restype = result
                getattr(library, name).argtypes = arguments
            return library
    pytest.skip("this confluent-kafka brings no librdkafka of its own")


class MockCluster:
    """One broker, in this process."""

    def __init__(self) -> None:
        self._library = _load()
        self._handle = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self.servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def create(self, topic: str, partitions: int = 1) -> None:
        create = self._library.rd_kafka_mock_topic_create
        assert create(self._cluster, topic.encode(), partitions, 1) == 0

    def answer(self, *errors: int, request: int = PRODUCE) -> None:
        """Answer the next requests with *errors*, one each."""
        array = (ctypes.c_int * len(errors))(*errors)
        push = self._library.rd_kafka_mock_push_request_errors_array
        push(self._cluster, request, len(errors), array)
