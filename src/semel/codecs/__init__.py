"""Serializers besides `semel.JsonSerializer`, one module for each library that they need.

========================  ==============================  ===============
class                     content type                    extra
========================  ==============================  ===============
MsgspecJsonSerializer     application/json                msgspec
OrjsonSerializer          application/json                orjson
MessagePackSerializer     application/msgpack             msgpack
AvroSerializer            application/avro                avro
ProtobufSerializer        application/protobuf            protobuf
SchemaRegistrySerializer  application/vnd.confluent.avro  schema-registry, avro
SignedSerializer          application/vnd.semel.jws
EncryptedSerializer       application/vnd.semel.jwe       encryption
========================  ==============================  ===============

A module is imported when one of its names is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "AvroSerializer": "avro",
    "EncryptedSerializer": "encryption",
    "MessagePackSerializer": "msgspec",
    "MsgspecJsonSerializer": "msgspec",
    "OrjsonSerializer": "orjson",
    "ProtobufSerializer": "protobuf",
    "SchemaRegistrySerializer": "registry",
    "SignedSerializer": "signing",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
