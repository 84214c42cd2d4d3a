// A job of the benchmarks (its argument, JSON) done by franz-go. Prints one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = 60 * time.Second

type job struct {
	Kind, Way, Bootstrap, Topic, Values string
	Partitions                          int32
	Size, Records, Rate                 int
	Settings                            struct {
		FetchMaxPartitionBytes, FetchMaxBytes, ProducerBatchMaxBytes int32
		ProducerLinger, MaxBufferedRecords                           int
		ProducerBatchCompression                                     string
		ShareGroup                                                   string
		ShareMaxRecords                                              int32
	}
}

type outcome struct {
	Seconds    float64   `json:"seconds"`
	CPU        float64   `json:"cpu_seconds"`
	Before     int64     `json:"rss_before"`
	Peak       int64     `json:"rss_peak"`
	Records    int       `json:"records"`
	ValueBytes int       `json:"value_bytes"`
	Latencies  []float64 `json:"latencies,omitempty"`
}

func main() {
	var todo job
	check(json.Unmarshal([]byte(os.Args[1]), &todo))
	if todo.Kind == "member" {
		member(todo)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ways := map[string]func(context.Context, job) outcome{"consume": consume, "produce": produce, "latency": latency, "share": share}
	way := ways[todo.Kind]
	if todo.Way == "acks" {
		way = acks
	}
	check(json.NewEncoder(os.Stdout).Encode(way(ctx, todo)))
}

func (j job) client(more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(more, kgo.SeedBrokers(strings.Split(j.Bootstrap, ",")...))...)
	check(err)
	return client
}

func (j job) reading() []kgo.Opt {
	return []kgo.Opt{
		kgo.FetchMaxPartitionBytes(j.Settings.FetchMaxPartitionBytes),
		kgo.FetchMaxBytes(j.Settings.FetchMaxBytes),
	}
}

func (j job) writing() []kgo.Opt {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Duration(j.Settings.ProducerLinger) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(j.Settings.ProducerBatchMaxBytes),
		kgo.MaxBufferedRecords(j.Settings.MaxBufferedRecords),
		kgo.ProducerBatchCompression(codecs[j.Settings.ProducerBatchCompression]),
		kgo.DefaultProduceTopic(j.Topic),
	}
}

// assign has the client read all partitions of the topic.
func (j job) assign(client *kgo.Client, from kgo.Offset) {
	places := map[int32]kgo.Offset{}
	for number := range j.Partitions {
		places[number] = from
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{j.Topic: places})
}

// warm makes the client know the brokers and the topic.
func (j job) warm(ctx context.Context, client *kgo.Client) {
	request := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(j.Topic)
	request.Topics = append(request.Topics, topic)
	_, err := client.Request(ctx, request)
	check(err)
}

func consume(ctx context.Context, j job) outcome {
	client := j.client(j.reading()...)
	defer client.Close()
	j.warm(ctx, client)
	count, size := 0, 0
	began := open()
	j.assign(client, kgo.NewOffset().At(0))
	for count < j.Records {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			size += len(record.Value)
			count++
		})
	}
	return began.close(count, size)
}

func produce(ctx context.Context, j job) outcome {
	data, err := os.ReadFile(j.Values)
	check(err)
	client := j.client(j.writing()...)
	defer client.Close()
	check(client.ProduceSync(ctx, kgo.StringRecord("first")).FirstErr())
	failed := make(chan error, 1)
	told := func(_ *kgo.Record, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	size := 0
	began := open()
	for number := range j.Records {
		start := number * j.Size % len(data)
		value := data[start : start+j.Size]
		client.Produce(ctx, &kgo.Record{Value: value}, told)
		size += len(value)
	}
	check(client.Flush(ctx))
	found := began.close(j.Records, size)
	select {
	case err := <-failed:
		check(err)
	default:
	}
	return found
}

// sharing has a client be a member of a share group. A refused acknowledgement ends the program.
func (j job) sharing() *kgo.Client {
	return j.client(append(
		j.reading(),
		kgo.ShareGroup(j.Settings.ShareGroup),
		kgo.ConsumeTopics(j.Topic),
		kgo.ShareMaxRecords(j.Settings.ShareMaxRecords),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			for _, each := range results {
				check(each.Err)
			}
		}),
	)...)
}

// share has one member acknowledge each record by a call, or the records of each poll together.
func share(ctx context.Context, j job) outcome {
	client := j.sharing()
	defer client.Close()
	var began *window
	count, size := 0, 0
	for count < j.Records {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		if began == nil { // the join is not what is timed
			opened := open()
			began = &opened
		}
		fetches.EachRecord(func(record *kgo.Record) {
			size += len(record.Value)
			count++
			if j.Way == "accept" {
				record.Ack(kgo.AckAccept)
			}
		})
		if j.Way == "batch" {
			client.MarkAcks(kgo.AckAccept)
		}
	}
	check(client.FlushAcks(ctx))
	return began.close(count, size)
}

// member accepts records until standard input ends, and prints each with its delivery count once the broker has taken
// that. It releases what it gets for the first time at each of so many offsets.
func member(j job) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		check(err)
		cancel()
	}()
	client := j.sharing()
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return // what it has polled is released by the close
		}
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if record.DeliveryCount() == 1 && record.Offset%int64(j.Size) == 0 {
				record.Ack(kgo.AckRelease)
				return
			}
			record.Ack(kgo.AckAccept)
			_, err := fmt.Fprintln(out, record.Partition, record.Offset, record.DeliveryCount())
			check(err)
		})
		check(client.FlushAcks(context.Background()))
		check(out.Flush())
	}
}

// latency has every record carry the time at which it was sent, as the other clients do.
func latency(ctx context.Context, j job) outcome {
	producer := j.client(j.writing()...)
	defer producer.Close()
	check(producer.ProduceSync(ctx, kgo.StringRecord("first")).FirstErr())
	consumer := j.client(j.reading()...)
	defer consumer.Close()
	j.warm(ctx, consumer)
	j.assign(consumer, kgo.NewOffset().AtEnd())
	settled, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	consumer.PollFetches(settled)
	stop()
	ages := make([]float64, 0, j.Records)
	base := time.Now()
	began := open()
	var sending sync.WaitGroup
	sending.Go(func() {
		paced(j.Records, func(int) {
			value := make([]byte, j.Size)
			binary.BigEndian.PutUint64(value, uint64(time.Since(base)))
			producer.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) { check(err) })
		})
		check(producer.Flush(ctx))
	})
	for len(ages) < j.Records {
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			age := time.Since(base) - time.Duration(binary.BigEndian.Uint64(record.Value))
			ages = append(ages, age.Seconds())
		})
	}
	sending.Wait()
	found := began.close(len(ages), len(ages)*j.Size)
	found.Latencies = ages
	return found
}

// paced calls once for each tick of the timer that is standard input: the pace of all clients (benchmarks/pace.py).
func paced(records int, call func(number int)) {
	ticks := make([]byte, 8)
	next := func() int {
		_, err := io.ReadFull(os.Stdin, ticks)
		check(err)
		return int(binary.NativeEndian.Uint64(ticks))
	}
	next() // those before the clock ran
	for number := 0; number < records; {
		for range min(next(), records-number) {
			call(number)
			number++
		}
	}
}

// acks is from the call of Produce to its promise.
func acks(ctx context.Context, j job) outcome {
	producer := j.client(j.writing()...)
	defer producer.Close()
	check(producer.ProduceSync(ctx, kgo.StringRecord("first")).FirstErr())
	value := make([]byte, j.Size)
	ages := make([]float64, j.Records)
	began := open()
	paced(j.Records, func(number int) {
		called := time.Now()
		producer.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			check(err)
			ages[number] = time.Since(called).Seconds()
		})
	})
	check(producer.Flush(ctx))
	found := began.close(j.Records, j.Records*j.Size)
	found.Latencies = ages
	return found
}

// window is the timed part: wall clock, processor time of all threads, memory of the process.
type window struct {
	began  time.Time
	cpu    float64
	memory int64
}

func open() window {
	runtime.GC()
	return window{memory: memory("VmRSS"), cpu: cpu(), began: time.Now()}
}

func (w window) close(records, size int) outcome {
	seconds, used := time.Since(w.began).Seconds(), cpu()-w.cpu
	return outcome{seconds, used, w.memory, max(w.memory, memory("VmHWM")), records, size, nil}
}

func cpu() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// memory is in bytes; where the system does not tell, what Go has taken from it must do.
func memory(name string) int64 {
	status, err := os.Open("/proc/self/status")
	if err != nil {
		var taken runtime.MemStats
		runtime.ReadMemStats(&taken)
		return int64(taken.Sys)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if value, is := strings.CutPrefix(lines.Text(), name+":"); is {
			kilobytes, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			check(err)
			return kilobytes * 1024
		}
	}
	return 0
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
