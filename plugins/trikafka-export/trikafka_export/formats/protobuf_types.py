"""Protobuf descriptors, from a descriptor set or a registry, and their Arrow types."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from trikafka.errors.peer_text import peer_text

from .errors import SchemaError

#: The deepest nesting of messages.
_DEEPEST = 60
#: The most fields of a message with all those nested in it. If each of thirty messages had two
#: fields of the next one, the Arrow type would have a billion fields.
_MOST_FIELDS = 10_000


class ProtobufSchema:
    """A Protobuf message and the files that define it.

    Args:
        files: The serialized file descriptors.
        message: The full name of the message.
        where: The words for the schema at the beginning of error messages.

    Raises:
        SchemaError: The files are malformed, or do not define the message.
    """

    def __init__(
        self, files: Sequence[bytes], message: str, where: str = "the Protobuf schema"
    ) -> None:
        self._files = list(files)
        self.message = message.lstrip(".")
        self._where = where
        self._pool = pool_of(self._files, where)
        try:
            self.descriptor = self._pool.FindMessageTypeByName(self.message)
        except KeyError:
            known = ", ".join(names_in(self._files)[:20])
            raise SchemaError(
                f"{where} has no message {self.message!r}; it has: {known or 'none'}"
            ) from None

    @classmethod
    def of_set(cls, data: bytes, message: str, where: str = "the Protobuf schema") -> Self:
        """Return the schema from a descriptor set.

        ``protoc --include_imports --descriptor_set_out=FILE`` writes a descriptor set.
        """
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError

        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(data)
        except DecodeError as error:
            how = (
                "protoc --include_imports --descriptor_set_out=FILE makes one from .proto files; "
                "grpcio-tools has a protoc"
            )
            raise SchemaError(
                f"{where} is not a descriptor set ({how}): {peer_text(error)}"
            ) from error
        return cls(
            [each.SerializeToString(deterministic=True) for each in found.file], message, where
        )

    @classmethod
    def of_pinned(cls, pinned: Mapping[str, Any], where: str = "the Protobuf schema") -> Self:
        """Return the schema that an export's plan has recorded with :meth:`pinned`."""
        return cls([base64.b64decode(each) for each in pinned["files"]], pinned["message"], where)

    def pinned(self) -> dict[str, Any]:
        """Return the schema as JSON values, to be recorded in an export's plan."""
        return {
            "message": self.message,
            "files": [base64.b64encode(each).decode() for each in self._files],
        }

    def checked(self) -> Self:
        """Check that a Parquet column can hold the message; return this schema.

        Raises:
            SchemaError: No column can hold it.
        """
        from .column_type import check_column

        check_column(self.type, self._where)
        return self

    @property
    def type(self) -> Any:
        """The Arrow type of the message.

        Raises:
            SchemaError: The message has no Arrow type.
        """
        _check_width(self.descriptor, self._where)
        return message_type(self.descriptor, self._where, "", ())

    @property
    def parse(self) -> Callable[[bytes], Any]:
        """A function that parses bytes into a message."""
        from google.protobuf import message_factory

        made: Callable[[bytes], Any] = message_factory.GetMessageClass(self.descriptor).FromString
        return made


def pool_of(files: Iterable[bytes], where: str) -> Any:
    """Return a descriptor pool with these files, and with Protobuf's own files that they import.

    Raises:
        SchemaError: A file is malformed, missing, or imports itself.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    waiting = {}
    try:
        for each in files:
            file = descriptor_pb2.FileDescriptorProto.FromString(each)
            waiting[file.name] = file
    except DecodeError as error:
        raise SchemaError(
            f"{where} is not a file descriptor of Protobuf: {peer_text(error)}"
        ) from error
    done: set[str] = set()

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in done:
            return
        file = waiting.get(name) or _bundled_file(name)
        if file is None:
            raise SchemaError(
                f"{where} imports {name!r}, which is missing: make the set with protoc "
                "--include_imports"
            )
        if name in above:
            raise SchemaError(f"{where} imports {name!r} in a circle")
        for each in file.dependency:
            add(each, (*above, name))
        try:
            pool.Add(file)
        except (TypeError, ValueError, KeyError) as error:
            raise SchemaError(f"{where}: {name} is wrong: {peer_text(error)}") from error
        done.add(name)

    for name in waiting:
        add(name, ())
    return pool


def names_in(files: Iterable[bytes]) -> list[str]:
    """Return the full names of the top-level messages."""
    from google.protobuf import descriptor_pb2

    found = []
    for each in files:
        file = descriptor_pb2.FileDescriptorProto.FromString(each)
        found += [f"{file.package}.{message.name}".lstrip(".") for message in file.message_type]
    return found


def name_at(file: bytes, indexes: Sequence[int]) -> str | None:
    """Return the name of the message at a registry's indexes; ``None`` if there is none.

    The first index counts the file's messages, each further one those nested in the message.
    """
    from google.protobuf import descriptor_pb2

    proto = descriptor_pb2.FileDescriptorProto.FromString(file)
    name, inside = proto.package, proto.message_type
    for index in indexes:
        if not 0 <= index < len(inside):
            return None
        name = f"{name}.{inside[index].name}"
        inside = inside[index].nested_type
    return str(name).lstrip(".")


def _bundled_file(name: str) -> Any:
    """Return the descriptor of a file that comes with Protobuf; ``None`` for others."""
    if not name.startswith("google/protobuf/"):
        return None
    import importlib

    from google.protobuf import descriptor_pb2

    try:
        module = importlib.import_module(
            f"google.protobuf.{name.removeprefix('google/protobuf/').removesuffix('.proto')}_pb2"
        )
    except ImportError:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


# --- types ---

#: The messages of Protobuf's own files that become a single value: the timestamp, the wrappers, and
#: those that become JSON text because they contain themselves.
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
AS_JSON = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))


def repeated(field: Any) -> bool:
    """Return whether the field is repeated."""
    return bool(
        field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    )


def is_required(field: Any) -> bool:
    """Return whether the field is required (proto2)."""
    return bool(
        field.is_required if hasattr(field, "is_required") else field.label == field.LABEL_REQUIRED
    )


def is_map(field: Any) -> bool:
    """Return whether the field is a map."""
    return bool(
        field.message_type is not None
        and field.message_type.GetOptions().map_entry
        and repeated(field)
    )


def _check_width(descriptor: Any, where: str) -> None:
    known: dict[str, int] = {}

    def width(message: Any) -> int:
        name = message.full_name
        if name not in known:
            known[name] = 1  # a placeholder; messages that contain themselves are refused elsewhere
            known[name] = sum(
                1 if field.message_type is None else 1 + width(field.message_type)
                for field in message.fields
            )
        return known[name]

    try:
        if width(descriptor) > _MOST_FIELDS:
            raise SchemaError(f"{where} has more than {_MOST_FIELDS:,} fields")
    except RecursionError:
        raise SchemaError(f"{where} is nested too deep") from None


# Decisions of the type mapping:
#
# * A field with presence (optional, messages, oneof members) is null when it is missing. A plain
#   proto3 field has its default then: on the wire the two cases are the same.
# * Enums become text, by the first name of a number. Unknown numbers become their digits, since a
#   newer producer may use them.
# * Timestamp becomes a timestamp in microseconds, a wrapper its value (null when missing). Struct,
#   Value and ListValue contain themselves and become JSON text.
# * A message without fields becomes a boolean that says whether it is present, because Parquet has
#   no struct without fields. The top-level message must have fields.
# * Any other message that contains itself is refused: no column can hold it.
def message_type(descriptor: Any, where: str, path: str, above: tuple[str, ...]) -> Any:
    """Return the Arrow type of a message.

    Args:
        descriptor: The message's descriptor.
        where: The words for the schema in errors.
        path: The path of the field that has this message, for errors; "" at the top.
        above: The names of the messages around this one.

    Raises:
        SchemaError: The message has no Arrow type.
    """
    import pyarrow as pa

    name = descriptor.full_name
    at = f"{where}: field {path.lstrip('.')}" if path else where
    if name == TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if name in WRAPPERS:
        return field_type(descriptor.fields_by_name["value"], where, path, above)
    if name in AS_JSON:
        return pa.string()
    if name in above or len(above) > _DEEPEST:
        raise SchemaError(f"{at} is the message {name} again, in itself: no column can hold that")
    if not descriptor.fields:
        if not above:
            raise SchemaError(
                f"{at} is the message {name}, which has no fields: Parquet cannot hold that"
            )
        return pa.bool_()  # True if the message is present
    fields = []
    for field in descriptor.fields:
        inner = f"{path}.{field.name}"
        if is_map(field):
            key = field.message_type.fields_by_name["key"]
            value = field.message_type.fields_by_name["value"]
            of_value = field_type(value, where, f"{inner}{{}}", (*above, name))
            fields.append(
                pa.field(field.name, pa.map_(field_type(key, where, inner, above), of_value))
            )
        elif repeated(field):
            fields.append(
                pa.field(
                    field.name, pa.list_(field_type(field, where, f"{inner}[]", (*above, name)))
                )
            )
        else:
            fields.append(pa.field(field.name, field_type(field, where, inner, (*above, name))))
    return pa.struct(fields)


def field_type(field: Any, where: str, path: str, above: tuple[str, ...]) -> Any:
    """Return the Arrow type of one value of a field."""
    import pyarrow as pa

    if field.message_type is not None:
        return message_type(field.message_type, where, path, above)
    return {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.uint32(),
        field.CPPTYPE_UINT64: pa.uint64(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }[field.cpp_type]


def type_of(field: Any) -> Any:
    """Return the Arrow type of one value of a field in a message that has been checked."""
    return field_type(field, "", "", ("",))
