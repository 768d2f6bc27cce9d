// The official Node client does what a plan says (plan.py), and tells what it saw as JSON lines. It judges nothing.
'use strict';

const fs = require('node:fs');
const {
  ConsumeResult, FilterExpression, LitePushConsumerBuilder, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const plan = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

function tell(event, facts) {
  fs.writeSync(1, `${JSON.stringify({ event, ...facts })}\n`);
}

/** Waits for what may be refused; whether it was not. */
async function tried(what, action) {
  try {
    await action();
    return true;
  } catch (error) {
    tell('refused', { what, text: `${error.name}: ${error.code ?? ''} ${error.message}` });
    return false;
  }
}

function pause(seconds) {
  return new Promise(resume => setTimeout(resume, seconds * 1000));
}

function configuration() {
  const credentials = { accessKey: plan.access_key, accessSecret: plan.secret };
  return {
    endpoints: plan.endpoint, namespace: '', sslEnabled: plan.tls,
    sessionCredentials: plan.access_key ? credentials : undefined,
  };
}

function subscriptions() {
  const kind = plan.sql ? FilterType.SQL : FilterType.TAG;
  return new Map([[plan.topic, new FilterExpression(plan.expression, kind)]]);
}

/** Answers with the first, then the second of a body's answers; the last holds for all later questions. */
class Checker {
  #asked = new Map();

  async check(view) {
    const body = view.body.toString();
    const before = this.#asked.get(body) ?? 0;
    this.#asked.set(body, before + 1);
    const answers = plan.answers[body] ?? ['unknown'];
    const answer = answers[Math.min(before, answers.length - 1)];
    tell('asked', { body, answer });
    if (answer === 'commit') return TransactionResolution.COMMIT;
    if (answer === 'rollback') return TransactionResolution.ROLLBACK;
    return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
  }
}

/** The producer, if the plan has messages; null if there is none, or it did not start. */
async function startedProducer() {
  if (plan.messages.length === 0) return null;
  const checker = plan.answers ? new Checker() : undefined;
  let producer = null;
  const good = await tried('producer', async () => {
    producer = new Producer({ ...configuration(), topic: plan.topic, checker });
    await producer.startup();
  });
  return good ? producer : null;
}

async function sendOne(producer, each) {
  return tried('send', async () => {
    const transaction = each.end ? producer.beginTransaction() : undefined;
    const receipt = await producer.send({
      topic: plan.topic, body: Buffer.from(each.body), tag: each.tag ?? undefined,
      messageGroup: each.message_group ?? undefined, liteTopic: each.lite_topic ?? undefined,
      priority: each.priority ?? undefined, properties: new Map(Object.entries(each.properties ?? {})),
    }, transaction);
    tell('sent', { body: each.body, id: receipt.messageId, transaction: receipt.transactionId });
    if (each.end === 'commit') await transaction.commit();
    if (each.end === 'rollback') await transaction.rollback();
  });
}

async function sendAll(producer) {
  await Promise.all(plan.messages.map(async list => {
    for (const each of list) {
      if (!await sendOne(producer, each)) return;
    }
  }));
}

/** What a consumer got so far, and when it is through. */
class Story {
  #seen = new Map();
  #done = 0;
  #finished;
  all = new Promise(resolve => { this.#finished = resolve; });

  get through() {
    return this.#done >= plan.count;
  }

  /** Takes a message in; whether the plan lets it succeed. */
  take(view) {
    const body = view.body.toString();
    tell('received', {
      id: view.messageId, body, attempt: view.deliveryAttempt, tag: view.tag, message_group: view.messageGroup,
      lite_topic: view.liteTopic, priority: view.priority, properties: Object.fromEntries(view.properties),
    });
    const times = (this.#seen.get(body) ?? 0) + 1;
    this.#seen.set(body, times);
    if (times <= (plan.fail[body] ?? 0)) {
      tell('failed', { body });
      return false;
    }
    return true;
  }

  finish(body) {
    tell('done', { body });
    this.#done += 1;
    if (this.#done === plan.count) this.#finished();
  }

  async simple() {
    let consumer;
    const started = await tried('consumer', async () => {
      consumer = new SimpleConsumer({
        ...configuration(), consumerGroup: plan.group, subscriptions: subscriptions(),
        awaitDuration: plan.poll_s * 1000,
      });
      await consumer.startup();
    });
    if (!started) return;
    let until = Date.now() + plan.patience_s * 1000;
    for (let lingers = false; Date.now() < until;) {
      let views = [];
      if (!await tried('receive', async () => { views = await consumer.receive(32, plan.invisible_s * 1000); })) break;
      for (const view of views) {
        if (this.take(view) && await tried('ack', () => consumer.ack(view))) this.finish(view.body.toString());
      }
      if (this.through && !lingers) {
        lingers = true;
        until = Date.now() + plan.linger_s * 1000;
      }
    }
    await consumer.shutdown();
  }

  /** Starts a push consumer; what ends it, or null if it did not start. */
  async push() {
    const messageListener = {
      consume: async view => {
        if (!this.take(view)) return ConsumeResult.FAILURE;
        this.finish(view.body.toString());
        return ConsumeResult.SUCCESS;
      },
    };
    let stop = null;
    await tried('consumer', async () => {
      if (plan.consumer === 'lite') {
        const consumer = await new LitePushConsumerBuilder().bindTopic(plan.topic)
          .setClientConfiguration(configuration()).setConsumerGroup(plan.group)
          .setMessageListener(messageListener).build();
        stop = () => consumer.close();
        for (const each of plan.lite_topics) await tried('subscribe', () => consumer.subscribeLite(each));
        return;
      }
      const consumer = new PushConsumer({
        ...configuration(), consumerGroup: plan.group, subscriptions: subscriptions(), messageListener,
        longPollingTimeout: plan.poll_s * 1000,
      });
      await consumer.startup();
      stop = () => consumer.shutdown();
    });
    return stop;
  }
}

async function main() {
  const story = new Story();
  const pushes = plan.consumer === 'push' || plan.consumer === 'lite';
  let stop = pushes && plan.consume_first ? await story.push() : null;
  const producer = await startedProducer();
  if (producer) await sendAll(producer);
  if (pushes) {
    if (!plan.consume_first) stop = await story.push();
    if (stop) {
      await Promise.race([story.all.then(() => pause(plan.linger_s)), pause(plan.patience_s)]);
      await tried('stop', stop);
    }
  } else if (plan.consumer === 'simple') {
    await story.simple();
  }
  if (producer) await tried('stop', () => producer.shutdown());
  tell('finished', { all: story.through });
  process.exit(0);
}

main();
