import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Churn THREADS ROUNDS: threads that make garbage, so that the collector's threads stop and move the heap all the time. Each keeps a
 *  map of chains that is changed at random and prints, in order, what is in it at the end; the compiler's threads work meanwhile. */
public class Churn {
    record Link(long value, Link next) {}

    static long round(int thread, int round, Map<Integer, Link> chains) {
        long state = thread * 1_000_003L + round;
        for (int step = 0; step < 60_000; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int key = (int) (state >>> 54);
            Link old = chains.get(key);
            chains.put(key, step % 7 == 0 || old == null ? new Link(state, null) : new Link(state ^ old.value(), old));
            byte[] garbage = new byte[(int) (state >>> 33 & 1023)];
            if (garbage.length > 0)
                garbage[garbage.length / 2] = (byte) state;
        }
        long sum = 0;
        for (Link chain : chains.values())
            for (Link link = chain; link != null; link = link.next())
                sum = sum * 31 + link.value();
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        int threads = Integer.parseInt(arguments[0]), rounds = Integer.parseInt(arguments[1]);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Map<Integer, Link>> chains = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++)
            chains.add(new HashMap<>());
        for (int round = 0; round < rounds; round++) {
            List<Callable<Long>> tasks = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                int self = thread, now = round;
                tasks.add(() -> round(self, now, chains.get(self)));
            }
            StringBuilder line = new StringBuilder().append(round);
            for (Future<Long> done : pool.invokeAll(tasks))
                line.append(' ').append(Long.toHexString(done.get()));
            System.out.println(line);
        }
        pool.shutdown();
    }
}
