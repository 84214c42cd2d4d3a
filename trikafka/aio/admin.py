"""The admin client for asyncio."""

from __future__ import annotations

from .. import Admin as _Admin
from .. import AdminConfig
from .crossing import OpenedClient
from .methods import crossing, direct, ending


class Admin(OpenedClient):
    """A client for administration; made by :func:`trikafka.aio.open_admin`.

    Its methods are those of :class:`trikafka.Admin`. A cancelled call is cancelled on Trio's side,
    too, before ``CancelledError`` is raised.
    """

    _client: _Admin

    @property
    def config(self) -> AdminConfig:
        """The settings of this client; see :attr:`trikafka.Admin.config`."""
        return self._client.config

    abort_transaction = crossing(_Admin.abort_transaction)
    aclose = ending(_Admin.aclose)
    add_raft_voter = crossing(_Admin.add_raft_voter)
    alter_client_quotas = crossing(_Admin.alter_client_quotas)
    alter_configs = crossing(_Admin.alter_configs)
    alter_group_offsets = crossing(_Admin.alter_group_offsets)
    alter_partition_reassignments = crossing(_Admin.alter_partition_reassignments)
    alter_replica_log_dirs = crossing(_Admin.alter_replica_log_dirs)
    alter_share_group_offsets = crossing(_Admin.alter_share_group_offsets)
    alter_user_scram_credentials = crossing(_Admin.alter_user_scram_credentials)
    client_instance_id = crossing(_Admin.client_instance_id)
    create_acls = crossing(_Admin.create_acls)
    create_delegation_token = crossing(_Admin.create_delegation_token)
    create_partitions = crossing(_Admin.create_partitions)
    create_topics = crossing(_Admin.create_topics)
    delete_acls = crossing(_Admin.delete_acls)
    delete_group_offsets = crossing(_Admin.delete_group_offsets)
    delete_groups = crossing(_Admin.delete_groups)
    delete_records = crossing(_Admin.delete_records)
    delete_share_group_offsets = crossing(_Admin.delete_share_group_offsets)
    delete_topics = crossing(_Admin.delete_topics)
    describe_acls = crossing(_Admin.describe_acls)
    describe_client_quotas = crossing(_Admin.describe_client_quotas)
    describe_cluster = crossing(_Admin.describe_cluster)
    describe_configs = crossing(_Admin.describe_configs)
    describe_delegation_tokens = crossing(_Admin.describe_delegation_tokens)
    describe_features = crossing(_Admin.describe_features)
    describe_groups = crossing(_Admin.describe_groups)
    describe_log_dirs = crossing(_Admin.describe_log_dirs)
    describe_metadata_quorum = crossing(_Admin.describe_metadata_quorum)
    describe_producers = crossing(_Admin.describe_producers)
    describe_replica_log_dirs = crossing(_Admin.describe_replica_log_dirs)
    describe_share_groups = crossing(_Admin.describe_share_groups)
    describe_streams_groups = crossing(_Admin.describe_streams_groups)
    describe_topics = crossing(_Admin.describe_topics)
    describe_transactions = crossing(_Admin.describe_transactions)
    describe_user_scram_credentials = crossing(_Admin.describe_user_scram_credentials)
    elect_leaders = crossing(_Admin.elect_leaders)
    end_transaction = crossing(_Admin.end_transaction)
    expire_delegation_token = crossing(_Admin.expire_delegation_token)
    fence_producers = crossing(_Admin.fence_producers)
    find_hanging_transactions = crossing(_Admin.find_hanging_transactions)
    force_terminate_transaction = crossing(_Admin.force_terminate_transaction)
    list_config_resources = crossing(_Admin.list_config_resources)
    list_group_offsets = crossing(_Admin.list_group_offsets)
    list_groups = crossing(_Admin.list_groups)
    list_offsets = crossing(_Admin.list_offsets)
    list_partition_reassignments = crossing(_Admin.list_partition_reassignments)
    list_share_group_offsets = crossing(_Admin.list_share_group_offsets)
    list_topics = crossing(_Admin.list_topics)
    list_transactions = crossing(_Admin.list_transactions)
    register_metric = direct(_Admin.register_metric)
    remove_group_members = crossing(_Admin.remove_group_members)
    remove_raft_voter = crossing(_Admin.remove_raft_voter)
    renew_delegation_token = crossing(_Admin.renew_delegation_token)
    topic_configs = crossing(_Admin.topic_configs)
    unregister_broker = crossing(_Admin.unregister_broker)
    unregister_controller = crossing(_Admin.unregister_controller)
    unregister_metric = direct(_Admin.unregister_metric)
    update_features = crossing(_Admin.update_features)
