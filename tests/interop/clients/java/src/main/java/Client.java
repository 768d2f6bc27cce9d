import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.Closeable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The official Java client does what a plan says (plan.py), and tells what it saw as JSON lines. It judges nothing. */
public final class Client {
    static final Gson JSON = new GsonBuilder().disableHtmlEscaping().create();
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static final class Item {
        String body;
        String tag;
        String message_group;
        String lite_topic;
        Integer priority;
        Map<String, String> properties = Map.of();
        String end = "";
    }

    static final class Plan {
        String endpoint;
        String access_key;
        String secret;
        boolean tls;
        String topic;
        String group;
        List<List<Item>> messages;
        Map<String, List<String>> answers;
        String consumer;
        boolean consume_first;
        String expression;
        boolean sql;
        List<String> lite_topics;
        Map<String, Integer> fail;
        int count;
        double patience_s;
        double linger_s;
        double invisible_s;
        double poll_s;
    }

    interface Action {
        void run() throws Exception;
    }

    final Plan plan;
    final Map<String, Integer> asked = new HashMap<>();
    final Map<String, Integer> seen = new HashMap<>();
    final CountDownLatch all;

    Client(Plan plan) {
        this.plan = plan;
        this.all = new CountDownLatch(plan.count);
    }

    static synchronized void tell(String event, Object... facts) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        for (int at = 0; at < facts.length; at += 2) {
            line.put((String) facts[at], facts[at + 1]);
        }
        System.out.println(JSON.toJson(line));
    }

    /** Does what may be refused; whether it was not. */
    static boolean tried(String what, Action action) {
        try {
            action.run();
            return true;
        } catch (Exception | LinkageError error) {
            tell("refused", "what", what, "text", error.toString());
            return false;
        }
    }

    static Duration seconds(double value) {
        return Duration.ofMillis(Math.round(value * 1000));
    }

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    ClientConfiguration configuration() {
        var builder = ClientConfiguration.newBuilder().setEndpoints(plan.endpoint).enableSsl(plan.tls);
        if (!plan.access_key.isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(plan.access_key, plan.secret));
        }
        return builder.build();
    }

    Map<String, FilterExpression> subscriptions() {
        var kind = plan.sql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(plan.topic, new FilterExpression(plan.expression, kind));
    }

    /** The last of a body's answers holds for all later questions. */
    synchronized TransactionResolution check(MessageView view) {
        String body = text(view);
        List<String> answers = plan.answers.getOrDefault(body, List.of("unknown"));
        int before = asked.merge(body, 1, Integer::sum) - 1;
        String answer = answers.get(Math.min(before, answers.size() - 1));
        tell("asked", "body", body, "answer", answer);
        return switch (answer) {
            case "commit" -> TransactionResolution.COMMIT;
            case "rollback" -> TransactionResolution.ROLLBACK;
            default -> TransactionResolution.UNKNOWN;
        };
    }

    void sendOne(Producer producer, Item item) throws Exception {
        var builder = PROVIDER.newMessageBuilder().setTopic(plan.topic);
        builder.setBody(item.body.getBytes(StandardCharsets.UTF_8));
        if (item.tag != null) {
            builder.setTag(item.tag);
        }
        if (item.message_group != null) {
            builder.setMessageGroup(item.message_group);
        }
        if (item.lite_topic != null) {
            builder.setLiteTopic(item.lite_topic);
        }
        if (item.priority != null) {
            builder.setPriority(item.priority);
        }
        item.properties.forEach(builder::addProperty);
        Transaction transaction = item.end.isEmpty() ? null : producer.beginTransaction();
        var receipt = transaction == null ? producer.send(builder.build()) : producer.send(builder.build(), transaction);
        tell("sent", "body", item.body, "id", receipt.getMessageId().toString());
        if (item.end.equals("commit")) {
            transaction.commit();
        } else if (item.end.equals("rollback")) {
            transaction.rollback();
        }
    }

    void send(Producer producer) throws InterruptedException {
        List<Thread> senders = new ArrayList<>();
        for (List<Item> list : plan.messages) {
            Thread sender = new Thread(() -> tried("send", () -> {
                for (Item item : list) {
                    sendOne(producer, item);
                }
            }));
            sender.start();
            senders.add(sender);
        }
        for (Thread sender : senders) {
            sender.join();
        }
    }

    /** Takes a message in; whether the plan lets it succeed. */
    synchronized boolean take(MessageView view) {
        String body = text(view);
        tell("received", "id", view.getMessageId().toString(), "body", body, "attempt", view.getDeliveryAttempt(),
                "tag", view.getTag().orElse(null), "message_group", view.getMessageGroup().orElse(null),
                "lite_topic", view.getLiteTopic().orElse(null), "priority", view.getPriority().orElse(null),
                "properties", view.getProperties());
        if (seen.merge(body, 1, Integer::sum) <= plan.fail.getOrDefault(body, 0)) {
            tell("failed", "body", body);
            return false;
        }
        return true;
    }

    synchronized void finish(MessageView view) {
        tell("done", "body", text(view));
        all.countDown();
    }

    void simple() throws Exception {
        try (var consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
                .setConsumerGroup(plan.group).setAwaitDuration(seconds(plan.poll_s))
                .setSubscriptionExpressions(subscriptions()).build()) {
            long until = System.nanoTime() + seconds(plan.patience_s).toNanos();
            boolean lingers = false;
            while (System.nanoTime() < until) {
                for (MessageView view : consumer.receive(32, seconds(plan.invisible_s))) {
                    if (take(view) && tried("ack", () -> consumer.ack(view))) {
                        finish(view);
                    }
                }
                if (all.getCount() == 0 && !lingers) {
                    lingers = true;
                    until = System.nanoTime() + seconds(plan.linger_s).toNanos();
                }
            }
        }
    }

    /** Starts a push consumer. */
    Closeable push() throws Exception {
        MessageListener listener = view -> {
            if (!take(view)) {
                return ConsumeResult.FAILURE;
            }
            finish(view);
            return ConsumeResult.SUCCESS;
        };
        if (plan.consumer.equals("lite")) {
            var consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration())
                    .bindTopic(plan.topic).setConsumerGroup(plan.group).setMessageListener(listener).build();
            for (String each : plan.lite_topics) {
                tried("subscribe", () -> consumer.subscribeLite(each));
            }
            return consumer;
        }
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(plan.group)
                .setSubscriptionExpressions(subscriptions()).setMessageListener(listener)
                .setConsumptionThreadCount(8).build();
    }

    void produce(List<Closeable> open) throws Exception {
        if (plan.messages.isEmpty()) {
            return;
        }
        var builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(plan.topic);
        if (plan.answers != null) {
            builder.setTransactionChecker(this::check);
        }
        Producer producer = builder.build();
        open.add(producer);
        send(producer);
    }

    void run() throws Exception {
        List<Closeable> open = new ArrayList<>();
        boolean pushes = plan.consumer.equals("push") || plan.consumer.equals("lite");
        boolean consumes = pushes && plan.consume_first && tried("consumer", () -> open.add(push()));
        tried("producer", () -> produce(open));
        if (pushes) {
            consumes = consumes || (!plan.consume_first && tried("consumer", () -> open.add(push())));
            if (consumes && all.await(seconds(plan.patience_s).toMillis(), TimeUnit.MILLISECONDS)) {
                Thread.sleep(seconds(plan.linger_s).toMillis());
            }
        } else if (plan.consumer.equals("simple")) {
            tried("consumer", this::simple);
        }
        for (Closeable each : open) {
            tried("stop", each::close);
        }
        tell("finished", "all", all.getCount() == 0);
    }

    public static void main(String[] arguments) throws Exception {
        new Client(JSON.fromJson(Files.readString(Path.of(arguments[0])), Plan.class)).run();
        System.exit(0);
    }
}
