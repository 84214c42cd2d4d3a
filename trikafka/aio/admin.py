"""The admin client for asyncio."""

from __future__ import annotations

from .. import Admin as _Admin
from .crossing import Client
from .methods import crossing


class Admin(Client):
    """A client for administration; made by :func:`trikafka.aio.open_admin`.

    Its methods are those of :class:`trikafka.Admin`. A cancelled call is cancelled on Trio's side,
    too, before ``CancelledError`` is raised.
    """

    abort_transaction = crossing(_Admin.abort_transaction)
    aclose = crossing(_Admin.aclose)
    alter_configs = crossing(_Admin.alter_configs)
    alter_group_offsets = crossing(_Admin.alter_group_offsets)
    client_instance_id = crossing(_Admin.client_instance_id)
    create_partitions = crossing(_Admin.create_partitions)
    create_topics = crossing(_Admin.create_topics)
    delete_group_offsets = crossing(_Admin.delete_group_offsets)
    delete_groups = crossing(_Admin.delete_groups)
    delete_records = crossing(_Admin.delete_records)
    delete_topics = crossing(_Admin.delete_topics)
    describe_cluster = crossing(_Admin.describe_cluster)
    describe_configs = crossing(_Admin.describe_configs)
    describe_groups = crossing(_Admin.describe_groups)
    describe_producers = crossing(_Admin.describe_producers)
    describe_transactions = crossing(_Admin.describe_transactions)
    end_transaction = crossing(_Admin.end_transaction)
    find_hanging_transactions = crossing(_Admin.find_hanging_transactions)
    list_group_offsets = crossing(_Admin.list_group_offsets)
    list_groups = crossing(_Admin.list_groups)
    list_offsets = crossing(_Admin.list_offsets)
    list_topics = crossing(_Admin.list_topics)
    list_transactions = crossing(_Admin.list_transactions)
    topic_configs = crossing(_Admin.topic_configs)
