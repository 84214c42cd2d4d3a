import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A job of the benchmarks (its argument, JSON) done by Kafka's own client. Prints one line of JSON. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** How long (s) a member may take to get its first record. */
    private static final long PATIENCE = 40;

    public static void main(String[] arguments) throws Exception {
        JsonNode job = JSON.readTree(arguments[0]);
        if (job.get("kind").asText().equals("member")) {
            shared(job);
            return;
        }
        Map<String, Object> found =
                switch (job.get("kind").asText()) {
                    case "group" -> group(job);
                    case "process" -> process(job);
                    case "share" -> share(job);
                    default -> consume(job);
                };
        System.out.println(JSON.writeValueAsString(found));
        System.exit(0);
    }

    private static Map<String, Object> settings(JsonNode job, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        job.get("settings").properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
        settings.put("bootstrap.servers", job.get("bootstrap").asText());
        return settings;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode job, Map<String, Object> more) {
        return new KafkaConsumer<>(settings(job, more), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<TopicPartition> places(JsonNode job) {
        List<TopicPartition> places = new ArrayList<>();
        for (int number = 0; number < job.get("partitions").asInt(); number++) {
            places.add(new TopicPartition(job.get("topic").asText(), number));
        }
        return places;
    }

    private static Map<String, Object> consume(JsonNode job) throws Exception {
        long wanted = job.get("records").asLong();
        List<TopicPartition> places = places(job);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(job, Map.of())) {
            consumer.endOffsets(places);
            read(consumer, places, wanted); // for the virtual machine's compiler; what is timed is the second time
            consumer.unsubscribe();
            Window window = new Window();
            long[] found = read(consumer, places, wanted);
            return window.close(found[0], found[1]);
        }
    }

    private static long[] read(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> places, long wanted) {
        consumer.assign(places);
        for (TopicPartition place : places) {
            consumer.seek(place, 0);
        }
        long count = 0, size = 0;
        while (count < wanted) {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(30))) {
                size += each.value().length;
                count++;
            }
        }
        return new long[] {count, size};
    }

    /** One member of a share group; a group of its own is read first, as above. */
    private static Map<String, Object> share(JsonNode job) throws Exception {
        member(job, job.get("settings").get("warm.group").asText());
        return member(job, job.get("settings").get("group.id").asText());
    }

    private static Map<String, Object> member(JsonNode job, String group) throws Exception {
        Map<String, Object> settings = settings(job, Map.of());
        settings.remove("warm.group");
        settings.put("group.id", group);
        boolean explicit = settings.get("share.acknowledgement.mode").equals("explicit");
        long wanted = job.get("records").asLong(), count = 0, size = 0;
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(job.get("topic").asText()));
            Window window = null;
            while (count < wanted) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(30))) {
                    if (window == null) {
                        window = new Window(); // the join is not what is timed
                    }
                    size += each.value().length;
                    count++;
                    if (explicit) {
                        consumer.acknowledge(each);
                    }
                }
            }
            consumer.commitSync();
            return window.close(count, size);
        }
    }

    /**
     * Accept records until standard input ends, and print each with its delivery count once the broker has taken that.
     * Release what comes for the first time at each of so many offsets.
     */
    private static void shared(JsonNode job) throws Exception {
        long every = job.get("size").asLong();
        CompletableFuture<Integer> ended = CompletableFuture.supplyAsync(Client::endOfInput);
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings(job, Map.of()), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(job.get("topic").asText()));
            while (!ended.isDone()) {
                StringBuilder lines = new StringBuilder();
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    short count = each.deliveryCount().get();
                    if (count == 1 && each.offset() % every == 0) {
                        consumer.acknowledge(each, AcknowledgeType.RELEASE);
                        continue;
                    }
                    consumer.acknowledge(each, AcknowledgeType.ACCEPT);
                    lines.append(each.partition() + " " + each.offset() + " " + count + "\n");
                }
                for (Optional<KafkaException> error : consumer.commitSync().values()) {
                    if (error.isPresent()) {
                        throw error.get();
                    }
                }
                System.out.print(lines);
                System.out.flush();
            }
        }
    }

    private static int endOfInput() {
        try {
            return System.in.readAllBytes().length;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Read, process, write in transactions, each open for some time. */
    private static Map<String, Object> process(JsonNode job) throws Exception {
        List<TopicPartition> places = places(job);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(job, Map.of());
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(settings(job, Map.of()), new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.partitionsFor(job.get("target").asText());
            consumer.endOffsets(places);
            long warm = transactions(job, consumer, producer, places); // as above
            consumer.unsubscribe();
            Window window = new Window();
            long count = transactions(job, consumer, producer, places);
            Map<String, Object> found = window.close(count, count * job.get("size").asLong());
            found.put("written", warm + count);
            return found;
        }
    }

    private static long transactions(
            JsonNode job, KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer, List<TopicPartition> places) {
        String target = job.get("target").asText();
        long wanted = job.get("records").asLong(), interval = (long) (job.get("seconds").asDouble() * 1e9), count = 0;
        consumer.assign(places);
        consumer.seekToBeginning(places);
        while (count < wanted) {
            producer.beginTransaction();
            long left, until = System.nanoTime() + interval;
            while ((left = until - System.nanoTime()) > 0) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofNanos(left))) {
                    producer.send(new ProducerRecord<>(target, each.value()));
                    count++;
                }
            }
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            places.forEach(place -> positions.put(place, new OffsetAndMetadata(consumer.position(place))));
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            producer.commitTransaction();
        }
        return count;
    }

    /** Members join one after the other; the arrivals of their records are told. */
    private static Map<String, Object> group(JsonNode job) throws Exception {
        String topic = job.get("topic").asText();
        List<Member> members = new ArrayList<>();
        Window window = new Window();
        for (int number = 0; number < job.get("tasks").asInt(); number++) {
            Member member = new Member(() -> consumer(job, Map.of("group.id", topic)), topic);
            members.add(member);
            member.start();
            while (member.count() == 0 && System.nanoTime() - member.opened < PATIENCE * 1_000_000_000L) {
                Thread.sleep(5);
            }
            Thread.sleep((long) (job.get("seconds").asDouble() * 1000));
        }
        List<Map<String, Object>> told = new ArrayList<>();
        long count = 0;
        for (Member member : members) {
            told.add(member.told());
            count += member.count();
        }
        Map<String, Object> found = window.close(count, count * job.get("size").asLong());
        found.put("members", told);
        return found;
    }

    private static final class Member extends Thread {
        final long opened = System.nanoTime();
        private final List<Double> arrivals = Collections.synchronizedList(new ArrayList<>());
        private final java.util.function.Supplier<KafkaConsumer<byte[], byte[]>> make;
        private final String topic;

        Member(java.util.function.Supplier<KafkaConsumer<byte[], byte[]>> make, String topic) {
            this.make = make;
            this.topic = topic;
            setDaemon(true);
        }

        @Override
        public void run() {
            KafkaConsumer<byte[], byte[]> consumer = make.get();
            consumer.subscribe(List.of(topic));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    arrivals.add(System.nanoTime() / 1e9);
                }
            }
        }

        int count() {
            return arrivals.size();
        }

        Map<String, Object> told() {
            synchronized (arrivals) {
                return Map.of("opened", opened / 1e9, "arrivals", new ArrayList<>(arrivals));
            }
        }
    }

    /** The timed part: wall clock, processor time of all threads, memory of the process. */
    private static final class Window {
        private final long memory = memory("VmRSS"), processor = processor(), began = System.nanoTime();

        Map<String, Object> close(long count, long size) {
            double seconds = (System.nanoTime() - began) / 1e9;
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("seconds", seconds);
            found.put("cpu_seconds", (processor() - processor) / 1e9);
            found.put("rss_before", memory);
            found.put("rss_peak", Math.max(memory, memory("VmHWM")));
            found.put("records", count);
            found.put("value_bytes", size);
            return found;
        }

        private static long processor() {
            return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
        }

        private static long memory(String name) {
            try {
                for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                    if (line.startsWith(name + ":")) {
                        return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
                    }
                }
            } catch (java.io.IOException error) {
                // another system: what the virtual machine knows of itself must do
            }
            return Runtime.getRuntime().totalMemory();
        }
    }
}
