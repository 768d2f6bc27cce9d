// The official Go client does what a plan says (plan.py), and tells what it saw as JSON lines. It judges nothing.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type message struct {
	Body         string            `json:"body"`
	Tag          *string           `json:"tag"`
	MessageGroup *string           `json:"message_group"`
	LiteTopic    *string           `json:"lite_topic"`
	Priority     *int32            `json:"priority"`
	Properties   map[string]string `json:"properties"`
	End          string            `json:"end"`
}

type plan struct {
	Endpoint     string              `json:"endpoint"`
	AccessKey    string              `json:"access_key"`
	Secret       string              `json:"secret"`
	TLS          bool                `json:"tls"`
	Topic        string              `json:"topic"`
	Group        string              `json:"group"`
	Messages     [][]message         `json:"messages"`
	Answers      map[string][]string `json:"answers"`
	Consumer     string              `json:"consumer"`
	ConsumeFirst bool                `json:"consume_first"`
	Expression   string              `json:"expression"`
	SQL          bool                `json:"sql"`
	LiteTopics   []string            `json:"lite_topics"`
	Fail         map[string]int      `json:"fail"`
	Count        int                 `json:"count"`
	PatienceS    float64             `json:"patience_s"`
	LingerS      float64             `json:"linger_s"`
	InvisibleS   float64             `json:"invisible_s"`
	PollS        float64             `json:"poll_s"`
}

type facts map[string]any

var output sync.Mutex

func tell(event string, more facts) {
	output.Lock()
	defer output.Unlock()
	line := facts{"event": event}
	for key, value := range more {
		line[key] = value
	}
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

func refused(what string, err error) bool {
	if err != nil {
		tell("refused", facts{"what": what, "text": err.Error()})
	}
	return err != nil
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}

func (p *plan) config() *rocketmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: p.AccessKey, AccessSecret: p.Secret}
	return &rocketmq.Config{Endpoint: p.Endpoint, ConsumerGroup: p.Group, Credentials: keys}
}

func (p *plan) subscriptions() map[string]*rocketmq.FilterExpression {
	kind := rocketmq.TAG
	if p.SQL {
		kind = rocketmq.SQL92
	}
	return map[string]*rocketmq.FilterExpression{p.Topic: rocketmq.NewFilterExpressionWithType(p.Expression, kind)}
}

// Producer, if the plan has messages; nil if there is none, or it did not start.
func (p *plan) producer() rocketmq.Producer {
	if len(p.Messages) == 0 {
		return nil
	}
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(p.Topic)}
	if p.Answers != nil {
		var lock sync.Mutex
		asked := map[string]int{}
		check := func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
			lock.Lock()
			defer lock.Unlock()
			body := string(view.GetBody())
			answer := p.answer(body, asked[body])
			asked[body]++
			tell("asked", facts{"body": body, "answer": answer})
			switch answer {
			case "commit":
				return rocketmq.COMMIT
			case "rollback":
				return rocketmq.ROLLBACK
			}
			return rocketmq.UNKNOWN
		}
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	}
	producer, err := rocketmq.NewProducer(p.config(), options...)
	if refused("producer", err) || refused("producer", producer.Start()) {
		return nil
	}
	return producer
}

// The last of a body's answers holds for all later questions.
func (p *plan) answer(body string, before int) string {
	answers := p.Answers[body]
	if len(answers) == 0 {
		return "unknown"
	}
	return answers[min(before, len(answers)-1)]
}

func (p *plan) send(producer rocketmq.Producer) {
	var senders sync.WaitGroup
	for _, list := range p.Messages {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for _, each := range list {
				if !p.sendOne(producer, each) {
					return
				}
			}
		}()
	}
	senders.Wait()
}

func (p *plan) sendOne(producer rocketmq.Producer, each message) bool {
	built := &rocketmq.Message{Topic: p.Topic, Body: []byte(each.Body), Tag: each.Tag}
	if each.MessageGroup != nil {
		built.SetMessageGroup(*each.MessageGroup)
	}
	if each.LiteTopic != nil {
		built.SetLiteTopic(*each.LiteTopic)
	}
	if each.Priority != nil && refused("send", built.SetPriority(*each.Priority)) {
		return false
	}
	for key, value := range each.Properties {
		built.AddProperty(key, value)
	}
	var receipts []*rocketmq.SendReceipt
	var transaction rocketmq.Transaction
	var err error
	if each.End == "" {
		receipts, err = producer.Send(context.Background(), built)
	} else {
		transaction = producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(context.Background(), built, transaction)
	}
	if refused("send", err) {
		return false
	}
	tell("sent", facts{"body": each.Body, "id": receipts[0].MessageID, "transaction": receipts[0].TransactionId})
	switch each.End {
	case "commit":
		return !refused("end", transaction.Commit())
	case "rollback":
		return !refused("end", transaction.RollBack())
	}
	return true
}

// What a consumer got so far, and when it is through.
type story struct {
	plan *plan
	lock sync.Mutex
	seen map[string]int
	done int
	all  chan struct{}
}

// Takes a message in; whether the plan lets it succeed.
func (s *story) take(view *rocketmq.MessageView) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	body := string(view.GetBody())
	tell("received", facts{
		"id": view.GetMessageId(), "body": body, "attempt": view.GetDeliveryAttempt(), "tag": view.GetTag(),
		"message_group": view.GetMessageGroup(), "lite_topic": view.GetLiteTopic(), "properties": view.GetProperties(),
	})
	s.seen[body]++
	if s.seen[body] <= s.plan.Fail[body] {
		tell("failed", facts{"body": body})
		return false
	}
	return true
}

func (s *story) finish(body string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	tell("done", facts{"body": body})
	s.done++
	if s.done == s.plan.Count {
		close(s.all)
	}
}

func (s *story) through() bool {
	select {
	case <-s.all:
		return true
	default:
		return false
	}
}

func (s *story) simple() {
	p := s.plan
	await := rocketmq.WithSimpleAwaitDuration(seconds(p.PollS))
	consumer, err := rocketmq.NewSimpleConsumer(
		p.config(), await, rocketmq.WithSimpleSubscriptionExpressions(p.subscriptions()))
	if refused("consumer", err) || refused("consumer", consumer.Start()) {
		return
	}
	defer func() { _ = consumer.GracefulStop() }()
	until := time.Now().Add(seconds(p.PatienceS))
	for lingers := false; time.Now().Before(until); {
		views, err := consumer.Receive(context.Background(), 32, seconds(p.InvisibleS))
		if status, is := rocketmq.AsErrRpcStatus(err); err != nil && !(is && status.GetCode() == 40401) {
			refused("receive", err)
			return
		}
		for _, view := range views {
			if s.take(view) && !refused("ack", consumer.Ack(context.Background(), view)) {
				s.finish(string(view.GetBody()))
			}
		}
		if s.through() && !lingers {
			lingers, until = true, time.Now().Add(seconds(p.LingerS))
		}
	}
}

// Starts a push consumer; what ends it, or nil if it did not start.
func (s *story) push() func() {
	p := s.plan
	options := []rocketmq.PushConsumerOption{
		rocketmq.WithPushAwaitDuration(seconds(p.PollS)),
		rocketmq.WithPushConsumptionThreadCount(8),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
			Consume: func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
				if !s.take(view) {
					return rocketmq.FAILURE
				}
				s.finish(string(view.GetBody()))
				return rocketmq.SUCCESS
			},
		}),
	}
	if p.Consumer == "lite" {
		lite := rocketmq.NewLitePushConsumerConfig(p.Topic, seconds(p.InvisibleS))
		consumer, err := rocketmq.NewLitePushConsumer(p.config(), lite, options...)
		if refused("consumer", err) || refused("consumer", consumer.Start()) {
			return nil
		}
		for _, each := range p.LiteTopics {
			refused("subscribe", consumer.SubscribeLite(each))
		}
		return func() { _ = consumer.GracefulStop() }
	}
	options = append(options, rocketmq.WithPushSubscriptionExpressions(p.subscriptions()))
	consumer, err := rocketmq.NewPushConsumer(p.config(), options...)
	if refused("consumer", err) || refused("consumer", consumer.Start()) {
		return nil
	}
	return func() { _ = consumer.GracefulStop() }
}

func (s *story) wait() {
	select {
	case <-s.all:
		time.Sleep(seconds(s.plan.LingerS))
	case <-time.After(seconds(s.plan.PatienceS)):
	}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	p := &plan{}
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	rocketmq.EnableSsl = p.TLS
	s := &story{plan: p, seen: map[string]int{}, all: make(chan struct{})}
	var stop func()
	pushes := p.Consumer == "push" || p.Consumer == "lite"
	if pushes && p.ConsumeFirst {
		stop = s.push()
	}
	producer := p.producer()
	if producer != nil {
		p.send(producer)
	}
	switch {
	case pushes:
		if !p.ConsumeFirst {
			stop = s.push()
		}
		if stop != nil {
			s.wait()
			stop()
		}
	case p.Consumer == "simple":
		s.simple()
	}
	if producer != nil {
		_ = producer.GracefulStop()
	}
	tell("finished", facts{"all": s.through()})
}
