import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Properties;
import java.util.Scanner;

/** Answers each line of the input: "store" a table with Properties.store(), or "load" bytes with Properties.load(InputStream). */
public class JavaProperties {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        Scanner lines = new Scanner(System.in, StandardCharsets.US_ASCII);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", -1);
            Properties table = new Properties();
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            if (words[0].equals("store")) {
                for (int i = 1; i + 1 < words.length; i += 2) {
                    table.setProperty(text(words[i]), text(words[i + 1]));
                }
                table.store(bytes, null);
                out.println(HEX.formatHex(bytes.toByteArray()));
                continue;
            }
            StringBuilder answer = new StringBuilder("loaded");
            try {
                table.load(new ByteArrayInputStream(HEX.parseHex(words[1])));
                for (String name : table.stringPropertyNames()) {
                    answer.append(' ').append(hex(name)).append(' ').append(hex(table.getProperty(name)));
                }
            } catch (IllegalArgumentException malformed) {
                answer = new StringBuilder("malformed");
            }
            out.println(answer);
        }
        out.flush();
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_16BE);
    }

    private static String hex(String text) {
        StringBuilder units = new StringBuilder();
        for (char unit : text.toCharArray()) {
            units.append(HEX.toHexDigits(unit));
        }
        return units.toString();
    }
}
