// spymemcached: "write" stores values, "read" checks that they are there after a restart.
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.transcoders.SerializingTranscoder;

public class Memcache {
    static void check(boolean ok, String what) {
        if (!ok) {
            System.out.println("failed: " + what);
            System.exit(1);
        }
    }

    static byte[] every(int count) {
        byte[] value = new byte[count];
        for (int i = 0; i < count; i++) {
            value[i] = (byte) (i * 7);
        }
        return value;
    }

    static final byte[] LARGE = every(1 << 20);
    static final String LONGEST = "k".repeat(250);

    static boolean has(MemcachedClient client, String key, byte[] value) {
        return Arrays.equals((byte[]) client.get(key), value);
    }

    static void write(MemcachedClient client) throws Exception {
        check(client.set("java/large", 0, LARGE).get(), "set");
        check(client.set("java/empty", 0, new byte[0]).get(), "set empty");
        check(client.set(LONGEST, 0, "\r\nEND\r\n".getBytes()).get(), "set longest");
        check(client.set("java/text", 0, "\u00e4").get(), "set text");
        check(client.set("java/object", 0, List.of(1, 2)).get(), "set object");
        check(!client.add("java/large", 0, LARGE).get(), "add");
        check(!client.replace("java/none", 0, LARGE).get(), "replace");

        check(client.incr("java/number", 1, 41) == 41, "incr of none");
        check(client.incr("java/number", 1) == 42, "incr");
        check(client.decr("java/number", 100) == 0, "decr");
        check(client.touch("java/number", 1000).get(), "touch");

        CASValue<Object> first = client.gets("java/text");
        check(client.cas("java/text", first.getCas(), "first") == CASResponse.OK, "cas");
        check(client.cas("java/text", first.getCas(), "second") == CASResponse.EXISTS, "old cas");
        check(client.append("java/text", ", last").get(), "append");
        check(client.prepend("java/text", "the ").get(), "prepend");

        check(client.set("java/short", 1, "x").get(), "set short");
        check(client.delete("java/object").get(), "delete");
        check(!client.delete("java/object").get(), "delete of none");
        long end = System.nanoTime() + 10_000_000_000L;
        while (client.get("java/short") != null) {
            check(System.nanoTime() < end, "expiry");
            Thread.sleep(10);
        }
    }

    static void read(MemcachedClient client) {
        check(has(client, "java/large", LARGE), "large");
        check(has(client, "java/empty", new byte[0]), "empty");
        check(has(client, LONGEST, "\r\nEND\r\n".getBytes()), "longest");
        Map<String, Object> found = client.getBulk("java/text", "java/object", "java/large");
        check(found.size() == 2, "get many");
        check(found.get("java/text").equals("the first, last"), "text");
        check(client.incr("java/number", 0) == 0, "number");
        check(client.getVersions().size() == 1, "version");
    }

    public static void main(String[] words) throws Exception {
        SerializingTranscoder plain = new SerializingTranscoder();
        plain.setCompressionThreshold(Integer.MAX_VALUE);
        MemcachedClient client = new MemcachedClient(
            new ConnectionFactoryBuilder()
                .setProtocol(words[2].equals("binary") ? Protocol.BINARY : Protocol.TEXT)
                .setTranscoder(plain)
                .setOpTimeout(10_000)
                .build(),
            AddrUtil.getAddresses(words[1]));
        if (words[0].equals("write")) {
            write(client);
        } else {
            read(client);
        }
        client.shutdown();
        System.out.println("done");
    }
}
