"""Protobuf schemas from a registry: file descriptors in Base64, with their import names."""

from __future__ import annotations

import base64
import binascii

from .errors import SchemaError
from .protobuf_types import ProtobufSchema, name_at
from .registry import Registered


def file_of(found: Registered) -> bytes:
    """Return the descriptor of the schema's own file.

    Raises:
        SchemaError: The registry returned none.
    """
    return _description(found.text, f"schema-{found.id}.proto", f"schema {found.id}")


def schema_of(found: Registered, indexes: list[int]) -> ProtobufSchema:
    """Return the message at these indexes, with everything that it needs.

    Raises:
        SchemaError: There is no such message.
    """
    where = f"schema {found.id} of the registry"
    own = file_of(found)
    name = name_at(own, indexes)
    if name is None:
        raise SchemaError(f"{where} has no message with the indexes {indexes}")
    files = [_description(text, name, where) for name, text in found.references]
    return ProtobufSchema([*files, own], name, where)


def _description(text: str, name: str, where: str) -> bytes:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError) as error:
        raise SchemaError(
            f"{where} is not given as descriptors: the registry does not know ?format=serialized; "
            "give a schema and its message"
        ) from error
    file.name = name
    return bytes(file.SerializeToString(deterministic=True))
