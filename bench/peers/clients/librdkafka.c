/* Apache Kafka by librdkafka, in C: what its library does without a language above it.
 *
 * librdkafka in  BROKER TOPIC RECORDS VALUE_BYTES BATCH LINGER_MS ACKS
 * librdkafka out BROKER TOPIC RECORDS
 *
 * Prints one line: seconds, processor seconds, and twenty times on the way `records:seconds`. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MARKS = 20, VALUES = 10000, MESSAGES = 10000, WAIT_MS = 60000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double used(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) fail(name, why);
}

static rd_kafka_t *make(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[512];
    rd_kafka_t *made = rd_kafka_new(type, conf, why, sizeof why);
    if (!made) fail("rd_kafka_new", why);
    return made;
}

/* The marks, kept until the end so that printing costs nothing meanwhile. */
static long marked[MARKS + 1];
static double marked_at[MARKS + 1];
static int marks;

static void mark(long records, long total, double started) {
    if (marks < MARKS && records >= total * (marks + 1) / MARKS) {
        marked[marks] = records;
        marked_at[marks++] = now() - started;
    }
}

static void report(double seconds, double cpu) {
    printf("%f %f", seconds, cpu);
    for (int i = 0; i < marks; i++) printf(" %ld:%f", marked[i], marked_at[i]);
    printf("\n");
}

static void produce(rd_kafka_t *kafka, rd_kafka_topic_t *topic, const void *value, size_t size) {
    while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, (void *)value, size, NULL, 0, NULL) == -1) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL) fail("produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(kafka, 10);
    }
}

static void in(char **arguments) {
    long records = atol(arguments[2]);
    size_t size = (size_t)atol(arguments[3]);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", arguments[0]);
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    set(conf, "batch.num.messages", arguments[4]);
    set(conf, "linger.ms", arguments[5]);
    set(conf, "acks", arguments[6]);
    rd_kafka_t *kafka = make(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(kafka, arguments[1], NULL);
    char *values = malloc(VALUES * size);
    for (size_t i = 0; i < VALUES * size; i++) values[i] = "0123456789abcdef"[rand() & 15];

    produce(kafka, topic, "warm", 4);
    if (rd_kafka_flush(kafka, WAIT_MS)) fail("flush", "the first record was not delivered");
    double started = now(), before = used();
    for (long i = 0; i < records; i++) {
        produce(kafka, topic, values + (size_t)(i % VALUES) * size, size);
        if (i % 1000 == 0) {
            rd_kafka_poll(kafka, 0);
            mark(i - rd_kafka_outq_len(kafka), records, started);
        }
    }
    if (rd_kafka_flush(kafka, 5 * WAIT_MS)) fail("flush", "not all was delivered");
    report(now() - started, used() - before);
}

static void out(char **arguments) {
    long records = atol(arguments[2]), seen = 0;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", arguments[0]);
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "fetch.queue.backoff.ms", "1");
    rd_kafka_t *kafka = make(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(kafka);
    rd_kafka_topic_partition_list_t *where = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(where, arguments[1], 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(kafka, where);
    rd_kafka_message_t *first = rd_kafka_consumer_poll(kafka, WAIT_MS);
    if (!first || first->err) fail("poll", "nothing came");
    rd_kafka_message_destroy(first);

    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(kafka);
    static rd_kafka_message_t *messages[MESSAGES];
    double started = now(), before = used();
    while (seen < records) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 1000, messages, MESSAGES);
        for (ssize_t i = 0; i < count; i++) {
            seen += !messages[i]->err;
            rd_kafka_message_destroy(messages[i]);
        }
        mark(seen, records, started);
    }
    report(now() - started, used() - before);
}

int main(int count, char **arguments) {
    if (count == 9 && !strcmp(arguments[1], "in")) in(arguments + 2);
    else if (count == 5 && !strcmp(arguments[1], "out")) out(arguments + 2);
    else fail(arguments[0], "in BROKER TOPIC RECORDS VALUE_BYTES BATCH LINGER_MS ACKS | out BROKER TOPIC RECORDS");
    return 0;
}
