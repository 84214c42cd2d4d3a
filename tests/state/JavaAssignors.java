import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.RebalanceProtocol;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own assignors and its bytes of the consumer protocol, asked by test_assignors_java.py: a question a line (JSON, bytes in
 * hexadecimal digits), an answer a line.
 */
public class JavaAssignors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        String line;
        while ((line = in.readLine()) != null) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer(JSON.readTree(line), answer);
            } catch (RuntimeException error) {
                answer.removeAll();
                StringBuilder text = new StringBuilder();
                for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                    text.append(cause).append("; ");
                }
                answer.put("error", text.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static void answer(JsonNode question, ObjectNode answer) {
        switch (question.get("ask").asText()) {
            case "assign" -> assign(question, answer);
            case "user data" -> userData(question, answer);
            case "subscription" -> answer.put("bytes", hex(ConsumerProtocol.serializeSubscription(
                subscription(question), (short) question.get("version").asInt())));
            case "decode subscription" -> {
                Subscription told = ConsumerProtocol.deserializeSubscription(bytes(question.get("bytes")));
                told.topics().forEach(answer.putArray("topics")::add);
                partitions(told.ownedPartitions(), answer, "owned");
                answer.put("generation", told.generationId().orElse(-1));
                answer.put("rack", told.rackId().orElse(null));
                answer.put("user_data", hex(told.userData()));
            }
            case "decode assignment" ->
                partitions(ConsumerProtocol.deserializeAssignment(bytes(question.get("bytes"))).partitions(), answer, "partitions");
            case "protocol" -> {
                List<RebalanceProtocol> common = new ArrayList<>(Arrays.asList(RebalanceProtocol.values()));
                question.get("assignors").forEach(name -> common.retainAll(named(name.asText()).supportedProtocols()));
                answer.put("protocol", common.stream().max(RebalanceProtocol::compareTo).get().name());
            }
            case "map order" -> {
                Map<String, Integer> map = new HashMap<>();
                question.get("keys").forEach(key -> map.put(key.asText(), 1));
                map.keySet().forEach(answer.putArray("keys")::add);
            }
            case "first of a set" -> {
                Set<TopicPartition> set = new HashSet<>();
                partitions(question.get("partitions")).forEach(set::add);
                partitions(question.get("removed")).forEach(set::remove);
                partitions(List.of(set.iterator().next()), answer, "first");
            }
            default -> throw new IllegalArgumentException(question.toString());
        }
    }

    private static ConsumerPartitionAssignor named(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    /** What a leader does: subscriptions from bytes into a HashMap in the order of the response, then the assignor. */
    private static void assign(JsonNode question, ObjectNode answer) {
        Map<String, Subscription> members = new HashMap<>();
        for (JsonNode member : question.get("members")) {
            Subscription told = ConsumerProtocol.deserializeSubscription(bytes(member.get("subscription")));
            told.setGroupInstanceId(Optional.ofNullable(member.get("instance").textValue()));
            members.put(member.get("id").asText(), told);
        }
        Map<String, Assignment> assigned = named(question.get("assignor").asText())
            .assign(cluster(question.get("topics")), new GroupSubscription(members)).groupAssignment();
        ObjectNode result = answer.putObject("assignment");
        assigned.forEach((member, assignment) -> result.put(member, hex(ConsumerProtocol.serializeAssignment(assignment))));
    }

    @SuppressWarnings({"deprecation", "removal"})  // ConsumerGroupMetadata's constructor: there is no other
    private static void userData(JsonNode question, ObjectNode answer) {
        ConsumerPartitionAssignor assignor = named(question.get("assignor").asText());
        if (question.hasNonNull("partitions")) {
            assignor.onAssignment(new Assignment(partitions(question.get("partitions"))),
                new ConsumerGroupMetadata("g", question.get("generation").asInt(), "m", Optional.empty()));
        }
        answer.put("bytes", hex(assignor.subscriptionUserData(Set.of("t"))));
    }

    private static Subscription subscription(JsonNode question) {
        List<String> topics = new ArrayList<>();
        question.get("topics").forEach(topic -> topics.add(topic.asText()));
        return new Subscription(topics, question.hasNonNull("user_data") ? bytes(question.get("user_data")) : null,
            partitions(question.get("owned")), question.get("generation").asInt(), Optional.ofNullable(question.get("rack").textValue()));
    }

    /** A node for each rack that is named; the replicas of a partition are given as racks ("" stands for a node without one). */
    private static Cluster cluster(JsonNode topics) {
        Map<String, Node> nodes = new LinkedHashMap<>();
        List<PartitionInfo> infos = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks) {
                    String name = rack.asText();
                    replicas.add(nodes.computeIfAbsent(name, r -> new Node(nodes.size(), "host", 9092, r.isEmpty() ? null : r)));
                }
                Node[] all = replicas.toArray(new Node[0]);
                infos.add(new PartitionInfo(topic.getKey(), number++, all.length > 0 ? all[0] : Node.noNode(), all, all));
            }
        });
        return new Cluster("cluster", nodes.values(), infos, new HashSet<>(), new HashSet<>());
    }

    private static List<TopicPartition> partitions(JsonNode list) {
        List<TopicPartition> result = new ArrayList<>();
        list.forEach(each -> result.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt())));
        return result;
    }

    private static void partitions(List<TopicPartition> list, ObjectNode answer, String name) {
        var array = answer.putArray(name);
        list.forEach(each -> array.addArray().add(each.topic()).add(each.partition()));
    }

    private static ByteBuffer bytes(JsonNode text) {
        return ByteBuffer.wrap(HEX.parseHex(text.asText()));
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }
}
