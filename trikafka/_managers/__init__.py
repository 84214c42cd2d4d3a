"""The request managers: each file owns its state and one kind of conversation with the brokers."""

from .._kafka_python import allow_schemas

allow_schemas()
