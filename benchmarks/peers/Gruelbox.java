import com.gruelbox.transactionoutbox.Dialect;
import com.gruelbox.transactionoutbox.Instantiator;
import com.gruelbox.transactionoutbox.Persistor;
import com.gruelbox.transactionoutbox.Submitter;
import com.gruelbox.transactionoutbox.TransactionManager;
import com.gruelbox.transactionoutbox.TransactionOutbox;
import com.gruelbox.transactionoutbox.TransactionOutboxEntry;
import com.gruelbox.transactionoutbox.TransactionOutboxListener;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.time.Duration;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** gruelbox transaction-outbox: a backlog of calls of one method, then flush() until it is empty. */
public class Gruelbox {
  static final AtomicLong done = new AtomicLong();
  static final String TEXT = "x".repeat(480);

  public static class Sink {
    public void publish(String key, String text) {
      done.incrementAndGet();
    }
  }

  public static void main(String[] args) throws Exception {
    int events = Integer.parseInt(args[1].replaceAll("[^0-9]", ""));
    URI uri = URI.create(System.getenv("BENCH_DSN"));
    String[] user = uri.getUserInfo().split(":");
    HikariConfig config = new HikariConfig();
    config.setJdbcUrl("jdbc:postgresql://" + uri.getHost() + ":" + uri.getPort() + uri.getPath());
    config.setUsername(user[0]);
    config.setPassword(user[1]);
    config.setMaximumPoolSize(16);
    try (HikariDataSource pool = new HikariDataSource(config)) {
      TransactionManager transactions = TransactionManager.fromDataSource(pool);
      Executor workers = Executors.newFixedThreadPool(8, Gruelbox::daemon);
      AtomicLong finished = new AtomicLong();
      // Calls wait for flush(): an executor that drops them is what a process that died leaves.
      TransactionOutbox writer = outbox(transactions, Submitter.withExecutor(task -> {}), finished);
      for (int start = 0; start < events; start += 500) {
        int from = start;
        int to = Math.min(start + 500, events);
        transactions.inTransaction(
            () -> {
              for (int n = from; n < to; n++) {
                writer.schedule(Sink.class).publish("k" + n % 997, TEXT);
              }
            });
      }
      TransactionOutbox relay = outbox(transactions, Submitter.withExecutor(workers), finished);
      Thread.sleep(1500); // longer than attemptFrequency: all of it is due
      long began = System.nanoTime();
      while (finished.get() < events) {
        if (!relay.flush()) {
          Thread.sleep(1);
        }
      }
      double seconds = (System.nanoTime() - began) / 1e9;
      System.out.println("{\"\": " + events / seconds + "}");
    }
    System.exit(0);
  }

  static Thread daemon(Runnable task) {
    Thread thread = new Thread(task);
    thread.setDaemon(true);
    return thread;
  }

  static TransactionOutbox outbox(
      TransactionManager transactions, Submitter submitter, AtomicLong finished) {
    return TransactionOutbox.builder()
        .transactionManager(transactions)
        .persistor(Persistor.forDialect(Dialect.POSTGRESQL_9))
        .instantiator(Instantiator.usingReflection())
        .submitter(submitter)
        .attemptFrequency(Duration.ofSeconds(1))
        .flushBatchSize(1000)
        .retentionThreshold(Duration.ZERO)
        .listener(
            new TransactionOutboxListener() {
              @Override
              public void success(TransactionOutboxEntry entry) {
                finished.incrementAndGet();
              }
            })
        .build();
  }
}
