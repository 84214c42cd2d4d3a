// Iceberg's REST catalog, of its reference implementation, as its own tests serve it: IcebergServer DIRECTORY.
//
// Tables are below the directory, and so is the catalog, in SQLite. It says at which port it is; then, for each line that it reads
// (NAMESPACE.TABLE PARTITION OFFSET), what Iceberg's own reader finds in the table, a line a row, and an empty line.
// It ends when its input does.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.OffsetDateTime;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.apache.iceberg.types.Types;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

public class IcebergServer {
    static final OffsetDateTime EPOCH = OffsetDateTime.parse("1970-01-01T00:00:00Z");

    public static void main(String[] given) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.setConf(new Configuration());
        String database = "jdbc:sqlite:" + given[0] + "/catalog.db";
        catalog.initialize("rest", Map.of("uri", database, "warehouse", "file://" + given[0], "jdbc.schema-version", "V1"));
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        server.addConnector(connector);
        server.setHandler(context);
        server.start();
        System.out.println(connector.getLocalPort());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                tell(catalog, line.split(" "));
            } catch (Throwable error) { // of a class that is missing, too
                error.printStackTrace();
            }
            System.out.println();
        }
        System.exit(0);
    }

    static void tell(JdbcCatalog catalog, String[] asked) throws Exception {
        Table table = catalog.loadTable(TableIdentifier.parse(asked[0]));
        for (Types.NestedField field : table.schema().columns()) {
            System.out.println("column " + field.name() + " " + field.type().typeId());
        }
        try (CloseableIterable<FileScanTask> files = table.newScan().planFiles()) {
            for (FileScanTask file : files) {
                System.out.println("file " + file.spec().partitionToPath(file.file().partition()));
            }
        }
        rows("row", table, Expressions.alwaysTrue());
        Expression some = Expressions.greaterThanOrEqual("offset", Long.parseLong(asked[2]));
        rows("some", table, Expressions.and(Expressions.equal("partition", Integer.parseInt(asked[1])), some));
    }

    static void rows(String kind, Table table, Expression where) throws Exception {
        try (CloseableIterable<Record> rows = IcebergGenerics.read(table).where(where).build()) {
            for (Record row : rows) {
                ByteBuffer value = (ByteBuffer) row.getField("value");
                StringBuilder shown = new StringBuilder(value == null ? "null" : "");
                while (value != null && value.hasRemaining()) {
                    shown.append(String.format("%02x", value.get()));
                }
                long time = ChronoUnit.MICROS.between(EPOCH, (OffsetDateTime) row.getField("timestamp"));
                String place = row.getField("topic") + " " + row.getField("partition") + " " + row.getField("offset");
                System.out.println(kind + " " + place + " " + time + " " + shown);
            }
        }
    }
}
