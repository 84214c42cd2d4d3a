import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;

/** Answers of Java's admin client about a topic, a group and a transactional id, one a line. */
public class AdminAnswers {
    private static void say(String call, Object... answer) {
        var words = new ArrayList<String>();
        for (Object each : answer) words.add(String.valueOf(each));
        System.out.println(call + "\t" + String.join(" ", words));
    }

    private static String ids(Collection<Node> nodes) {
        return nodes.stream().map(node -> String.valueOf(node.id())).toList().toString();
    }

    private static void offsets(Admin admin, String call, List<TopicPartition> all, OffsetSpec spec)
            throws Exception {
        var asked = new TreeMap<TopicPartition, OffsetSpec>(AdminAnswers::compare);
        all.forEach(tp -> asked.put(tp, spec));
        var found = admin.listOffsets(asked).all().get();
        for (TopicPartition tp : all) {
            var each = found.get(tp);
            say(call, tp, each.offset(), each.timestamp(), each.leaderEpoch().orElse(-1));
        }
    }

    private static int compare(TopicPartition one, TopicPartition other) {
        return one.toString().compareTo(other.toString());
    }

    private static <T> List<T> sorted(Collection<T> all, Function<T, String> key) {
        return all.stream().sorted((one, other) -> key.apply(one).compareTo(key.apply(other))).toList();
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String group = arguments[2];
        String id = arguments[3];
        long time = Long.parseLong(arguments[4]);
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            var listing = admin.listTopics().namesToListings().get().get(topic);
            say("list_topics", listing.name(), listing.isInternal());
            var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            var all = new ArrayList<TopicPartition>();
            for (var part : described.partitions()) {
                all.add(new TopicPartition(topic, part.partition()));
                say("describe_topics", part.partition(), part.leader().id(), ids(part.replicas()), ids(part.isr()));
            }
            var cluster = admin.describeCluster();
            say("describe_cluster", cluster.clusterId().get());
            for (Node node : sorted(cluster.nodes().get(), Node::idString))
                say("describe_cluster", node.id(), node.host(), node.port(), node.rack());
            offsets(admin, "earliest", all, OffsetSpec.earliest());
            offsets(admin, "latest", all, OffsetSpec.latest());
            offsets(admin, "max_timestamp", all, OffsetSpec.maxTimestamp());
            offsets(admin, "earliest_local", all, OffsetSpec.earliestLocal());
            offsets(admin, "time", all, OffsetSpec.forTimestamp(time));
            for (var each : sorted(admin.listGroups().all().get(), GroupListing::groupId))
                if (each.groupId().startsWith(group))
                    say("list_groups", each.groupId(), each.type().get(), each.protocol(), each.groupState().get());
            for (String name : List.of(group, group + "-new")) {
                var members = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
                say("describe_groups", name, members.groupState(), members.type(), members.partitionAssignor());
                for (var each : members.members())
                    say("describe_groups", each.consumerId(), each.clientId(), each.host(), each.groupInstanceId().orElse("-"), sorted(each.assignment().topicPartitions(), TopicPartition::toString));
            }
            var committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            for (var each : sorted(committed.keySet(), TopicPartition::toString))
                say("list_group_offsets", each, committed.get(each).offset(), committed.get(each).leaderEpoch().orElse(-1), committed.get(each).metadata());
            for (var each : admin.listTransactions().all().get())
                if (each.transactionalId().equals(id))
                    say("list_transactions", id, each.producerId(), each.state());
            var transaction = admin.describeTransactions(Set.of(id)).all().get().get(id);
            say("describe_transactions", transaction.state(), transaction.producerId(), transaction.producerEpoch(), transaction.transactionTimeoutMs(), transaction.transactionStartTimeMs().orElse(-1), sorted(transaction.topicPartitions(), TopicPartition::toString));
            var producers = admin.describeProducers(all).all().get();
            for (TopicPartition tp : all)
                for (var each : sorted(producers.get(tp).activeProducers(), one -> String.valueOf(one.producerId())))
                    say("describe_producers", tp, each.producerId(), each.producerEpoch(), each.lastSequence(), each.lastTimestamp(), each.coordinatorEpoch().orElse(-1), each.currentTransactionStartOffset().orElse(-1));
            say("list_partition_reassignments", admin.listPartitionReassignments().reassignments().get().size());
            var configs = admin.describeConfigs(List.of(new ConfigResource(ConfigResource.Type.TOPIC, topic))).all().get();
            for (Config config : configs.values())
                for (var each : sorted(config.entries(), ConfigEntry::name))
                    say("describe_configs", each.name(), each.value(), each.isReadOnly(), each.isSensitive(), each.type().toString().toLowerCase());
            var resources = admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all().get();
            say("list_config_resources", resources.stream().anyMatch(each -> each.name().equals(topic)));
            var directories = admin.describeReplicaLogDirs(List.of(new TopicPartitionReplica(topic, 0, 0))).all().get();
            directories.values().forEach(each -> say("describe_replica_log_dirs", each.getCurrentReplicaLogDir(), each.getCurrentReplicaOffsetLag(), each.getFutureReplicaLogDir()));
        }
    }
}
