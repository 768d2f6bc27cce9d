//! The official Rust client does what a plan says (plan.py), and tells what it saw as JSON lines. It judges nothing.
//!
//! This client has no push consumer, and sends neither priorities nor to lite topics.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

type Plan = Arc<Value>;

fn tell(event: &str, mut facts: Value) {
    facts["event"] = json!(event);
    println!("{facts}");
}

/// The value, or nothing if it was refused, which is told.
fn accepted<T, E: Display>(what: &str, result: Result<T, E>) -> Option<T> {
    result.map_err(|error| tell("refused", json!({"what": what, "text": error.to_string()}))).ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or_default())
}

fn body_of(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).to_string()
}

fn client_option(plan: &Plan) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(&plan["endpoint"]));
    option.set_enable_tls(plan["tls"] == true);
    option.set_long_polling_timeout(seconds(&plan["poll_s"]));
    if plan["access_key"] != "" {
        option.set_access_key(text(&plan["access_key"]));
        option.set_secret_key(text(&plan["secret"]));
    }
    option
}

/// How a half message ended: the last of a body's answers holds for all later questions.
fn answer(plan: &Plan, asked: &Mutex<HashMap<String, usize>>, body: String) -> TransactionResolution {
    let mut asked = asked.lock().unwrap();
    let before = asked.entry(body.clone()).or_insert(0);
    let answers = plan["answers"][&body].as_array().cloned().unwrap_or_default();
    let at = (*before).min(answers.len().saturating_sub(1));
    *before += 1;
    let answer = answers.get(at).map(text).unwrap_or_default();
    tell("asked", json!({"body": body, "answer": answer}));
    match answer.as_str() {
        "commit" => TransactionResolution::COMMIT,
        "rollback" => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

/// The producer, if the plan has messages; nothing if there is none, or it did not start.
async fn started_producer(plan: &Plan) -> Option<Producer> {
    if plan["messages"].as_array()?.is_empty() {
        return None;
    }
    let mut option = ProducerOption::default();
    option.set_topics(vec![text(&plan["topic"])]);
    let made = if plan["answers"].is_null() {
        Producer::new(option, client_option(plan))
    } else {
        let (of_checks, asked) = (plan.clone(), Mutex::new(HashMap::new()));
        let check = move |_: String, view: MessageView| answer(&of_checks, &asked, body_of(&view));
        Producer::new_transaction_producer(option, client_option(plan), Box::new(check))
    };
    let mut producer = accepted("producer", made)?;
    accepted("producer", producer.start().await)?;
    Some(producer)
}

async fn send_one(plan: &Plan, producer: &Producer, item: &Value) -> Result<(), Box<dyn Error + Send + Sync>> {
    let body = text(&item["body"]);
    let mut builder = MessageBuilder::builder().set_topic(text(&plan["topic"])).set_body(body.clone().into_bytes());
    if let Some(tag) = item["tag"].as_str() {
        builder = builder.set_tag(tag);
    }
    if let Some(group) = item["message_group"].as_str() {
        builder = builder.set_message_group(group);
    }
    if let Some(properties) = item["properties"].as_object() {
        let of_text: HashMap<String, String> = properties.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        builder = builder.set_properties(of_text);
    }
    let end = text(&item["end"]);
    if end.is_empty() {
        let receipt = producer.send(builder.build()?).await?;
        tell("sent", json!({"body": body, "id": receipt.message_id()}));
        return Ok(());
    }
    let transaction = producer.send_transaction_message(builder.enable_transaction().build()?).await?;
    let (id, transaction_id) = (transaction.message_id().to_string(), transaction.transaction_id().to_string());
    tell("sent", json!({"body": body, "id": id, "transaction": transaction_id}));
    match end.as_str() {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => {}
    }
    Ok(())
}

async fn send(plan: &Plan, producer: Producer) -> Option<Producer> {
    let producer = Arc::new(producer);
    let mut senders = Vec::new();
    for list in plan["messages"].as_array()?.clone() {
        let (plan, producer) = (plan.clone(), producer.clone());
        senders.push(tokio::spawn(async move {
            for item in list.as_array().unwrap() {
                if accepted("send", send_one(&plan, &producer, item).await).is_none() {
                    return;
                }
            }
        }));
    }
    for sender in senders {
        accepted("send", sender.await);
    }
    Arc::into_inner(producer)
}

/// Receives as the plan says; whether all came.
async fn simple(plan: &Plan) -> Option<bool> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(text(&plan["group"]));
    option.set_topics(vec![text(&plan["topic"])]);
    let mut consumer = accepted("consumer", SimpleConsumer::new(option, client_option(plan)))?;
    accepted("consumer", consumer.start().await)?;
    let kind = if plan["sql"] == true { FilterType::Sql } else { FilterType::Tag };
    let expression = FilterExpression::new(kind, text(&plan["expression"]));
    let mut seen: HashMap<String, u64> = HashMap::new();
    let count = plan["count"].as_u64()?;
    let mut done = 0;
    let mut until = Instant::now() + seconds(&plan["patience_s"]);
    let mut lingers = false;
    while Instant::now() < until {
        let invisible = seconds(&plan["invisible_s"]);
        let received = consumer.receive_with(text(&plan["topic"]), &expression, 32, invisible).await;
        let Some(views) = accepted("receive", received) else { break };
        for view in views {
            let body = body_of(&view);
            tell(
                "received",
                json!({
                    "id": view.message_id(), "body": body, "attempt": view.delivery_attempt(), "tag": view.tag(),
                    "message_group": view.message_group(), "properties": view.properties(),
                }),
            );
            let times = seen.entry(body.clone()).or_insert(0);
            *times += 1;
            if *times <= plan["fail"][&body].as_u64().unwrap_or(0) {
                tell("failed", json!({"body": body}));
            } else if accepted("ack", consumer.ack(&view).await).is_some() {
                tell("done", json!({"body": body}));
                done += 1;
            }
        }
        if done >= count && !lingers {
            lingers = true;
            until = Instant::now() + seconds(&plan["linger_s"]);
        }
    }
    accepted("stop", consumer.shutdown().await);
    Some(done >= count)
}

#[tokio::main]
async fn main() {
    let path = std::env::args().nth(1).expect("the plan's file");
    let plan: Plan = Arc::new(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap());
    let mut producer = started_producer(&plan).await;
    if let Some(each) = producer.take() {
        producer = send(&plan, each).await;
    }
    let all = plan["consumer"] == "simple" && simple(&plan).await.unwrap_or(false);
    if let Some(each) = producer {
        accepted("stop", each.shutdown().await);
    }
    tell("finished", json!({"all": all}));
}
