"""The calls that KRaft controllers answer themselves (KIP-919)."""

from __future__ import annotations

#: Their names. All other calls need brokers, which have the records and coordinate groups.
BY_CONTROLLERS = frozenset(
    {
        "add_raft_voter",
        "alter_client_quotas",
        "alter_configs",
        "alter_partition_reassignments",
        "alter_user_scram_credentials",
        "create_acls",
        "create_delegation_token",
        "create_partitions",
        "create_topics",
        "delete_acls",
        "delete_topics",
        "describe_acls",
        "describe_cluster",
        "describe_configs",
        "describe_features",
        "describe_metadata_quorum",
        "elect_leaders",
        "expire_delegation_token",
        "list_partition_reassignments",
        "remove_raft_voter",
        "renew_delegation_token",
        "topic_configs",
        "unregister_broker",
        "unregister_controller",
        "update_features",
    }
)
