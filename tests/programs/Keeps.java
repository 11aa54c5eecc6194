import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CyclicBarrier;
import java.util.zip.CRC32;

/** Keeps THREADS: threads that keep arrays of all sizes, in the heap and beside it, and compare each byte of them with what they wrote, in
 *  every round. Each round replaces some, so that the collector has something to take away and to move. A line to the file `lines` for each
 *  round of all, until there is a file `enough`. Exit status: 3 when memory is not what was written. */
public class Keeps {
    static final int ARRAYS = 64, LARGEST = 1 << 17;
    static volatile boolean over;

    static byte[] content(long seed, int size) {
        byte[] bytes = new byte[size];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    static long sum(byte[] bytes) {
        CRC32 sum = new CRC32();
        sum.update(bytes);
        return sum.getValue();
    }

    static void same(boolean good, String what) {
        if (!good) {
            System.out.println(what + " is not what was written");
            System.exit(3);
        }
    }

    static void keep(int thread, CyclicBarrier barrier) {
        byte[][] kept = new byte[ARRAYS][];
        long[] seeds = new long[ARRAYS], sums = new long[ARRAYS];
        ByteBuffer beside = ByteBuffer.allocateDirect(1 << 20);
        byte[] first = content(thread, 1 << 20), now = new byte[1 << 20];
        Random random = new Random(thread);
        beside.put(first);
        try {
            for (int round = 0; !over; round++) {
                for (int i = 0; i < ARRAYS; i++) {
                    if (kept[i] == null || random.nextInt(4) == 0) {
                        seeds[i] = random.nextLong();
                        kept[i] = content(seeds[i], 1 + random.nextInt(1 << 1 + random.nextInt(17)));
                        sums[i] = sum(kept[i]);
                    }
                    same(kept[i].length <= LARGEST && sum(kept[i]) == sums[i], "the sum of array " + i);
                    same(Arrays.equals(kept[i], content(seeds[i], kept[i].length)), "array " + i);
                }
                beside.get(0, now);
                same(Arrays.equals(now, first), "memory beside the heap");
                barrier.await();
            }
        } catch (Exception error) {
            error.printStackTrace(System.out);
            System.exit(4);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int threads = Integer.parseInt(arguments[0]);
        FileWriter lines = new FileWriter("lines", true);
        CyclicBarrier barrier = new CyclicBarrier(threads, () -> {
            try {
                lines.write("1\n");
                lines.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            over = Files.exists(Path.of("enough"));
        });
        Thread[] all = new Thread[threads];
        for (int thread = 0; thread < threads; thread++) {
            int self = thread;
            all[thread] = new Thread(() -> keep(self, barrier));
            all[thread].start();
        }
        for (Thread thread : all)
            thread.join();
        System.out.println("all is as it was");
    }
}
