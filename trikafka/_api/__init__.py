"""The public clients (consumer, producer, admin), the functions that open them, and exports."""

from .._kafka_python import allow_schemas

allow_schemas()
