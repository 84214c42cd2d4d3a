import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/**
 * A receiver of client metrics: each payload becomes a file named number-client-terminating.
 *
 * <p>It is loaded as a Java agent, which puts its jar behind the broker's class path.
 */
@SuppressWarnings("removal")
public class TelemetryReporter implements MetricsReporter, ClientTelemetry {
    private final Path directory = Path.of(System.getProperty("telemetry.directory"));
    private final AtomicInteger count = new AtomicInteger();

    public static void premain(String arguments) {}

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> write(payload);
    }

    private void write(ClientTelemetryPayload payload) {
        ByteBuffer data = payload.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        String name =
                String.format(
                        "%05d-%s-%s",
                        count.incrementAndGet(),
                        payload.clientInstanceId().toString().replace('-', '_'),
                        payload.isTerminating());
        try {
            Path whole = Files.write(directory.resolve(name + ".part"), bytes);
            Files.move(whole, directory.resolve(name + ".otlp"));
        } catch (IOException failed) {
            throw new IllegalStateException(failed);
        }
    }

    @Override
    public void configure(Map<String, ?> settings) {}

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public void close() {}
}
