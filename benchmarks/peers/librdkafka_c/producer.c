/* A job of the benchmarks, done by librdkafka in C:
 *
 *     producer LIBRARY VALUES SIZE RECORDS TOPIC NAME=SETTING...
 *
 * LIBRARY is confluent-kafka's own copy of librdkafka, so this program and confluent-kafka run the
 * same code. The program loads it with dlopen(), and declares the functions that it calls. Values
 * are not copied: librdkafka allows that to a caller that keeps them. The program prints one line
 * of JSON. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* librdkafka's constants. */
enum { PRODUCER = 0, CONF_OK = 0, ANY_PARTITION = -1, QUEUE_FULL = -184 };
/* Records between two calls of rd_kafka_poll(), and the milliseconds that a flush may take. */
enum { SERVE_EVERY = 1000, PATIENCE_MS = 30000 };

static void *library;

static void stop(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) stop(name, dlerror());
    return found;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
    return seconds + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static long memory(const char *name) {
    char line[256];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) kilobytes = atol(line + strlen(name) + 1);
    if (status != NULL) fclose(status);
    return kilobytes * 1024;
}

static char *contents(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    char *data;
    if (file == NULL) stop(path, "cannot be read");
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    data = malloc((size_t)*size);
    if (data == NULL || fread(data, 1, (size_t)*size, file) != (size_t)*size)
        stop(path, "cannot be read");
    fclose(file);
    return data;
}

int main(int count, char **words) {
    char why[512];
    if (count < 6) stop(words[0], "LIBRARY VALUES SIZE RECORDS TOPIC NAME=SETTING...");
    library = dlopen(words[1], RTLD_NOW);
    if (library == NULL) stop(words[1], dlerror());
    void *(*conf_new)(void) = find("rd_kafka_conf_new");
    int (*conf_set)(void *, const char *, const char *, char *, size_t) = find("rd_kafka_conf_set");
    void *(*client_new)(int, void *, char *, size_t) = find("rd_kafka_new");
    void *(*topic_new)(void *, const char *, void *) = find("rd_kafka_topic_new");
    int (*produce)(void *, int, int, void *, size_t, const void *, size_t, void *) =
        find("rd_kafka_produce");
    int (*last_error)(void) = find("rd_kafka_last_error");
    const char *(*error_text)(int) = find("rd_kafka_err2str");
    int (*poll)(void *, int) = find("rd_kafka_poll");
    int (*flush)(void *, int) = find("rd_kafka_flush");

    long bytes, size = atol(words[3]), records = atol(words[4]);
    char *values = contents(words[2], &bytes);
    void *settings = conf_new();
    for (int each = 6; each < count; each++) {
        char *value = strchr(words[each], '=');
        *value = '\0';
        if (conf_set(settings, words[each], value + 1, why, sizeof why) != CONF_OK)
            stop(words[each], why);
    }
    void *client = client_new(PRODUCER, settings, why, sizeof why);
    if (client == NULL) stop("rd_kafka_new", why);
    void *topic = topic_new(client, words[5], NULL);
    if (produce(topic, ANY_PARTITION, 0, "first", 5, NULL, 0, NULL) != 0
        || flush(client, PATIENCE_MS) != 0)
        stop("the first", "not delivered");

    long before = memory("VmRSS"), position = 0;
    double used = cpu(), began = now();
    for (long number = 0; number < records; number++) {
        void *value = values + position;
        while (produce(topic, ANY_PARTITION, 0, value, (size_t)size, NULL, 0, NULL) != 0) {
            if (last_error() != QUEUE_FULL) stop("rd_kafka_produce", error_text(last_error()));
            poll(client, 10);
        }
        position += size;
        if (position + size > bytes) position = 0;
        if (number % SERVE_EVERY == 0) poll(client, 0);
    }
    if (flush(client, PATIENCE_MS) != 0) stop("rd_kafka_flush", "not all records were delivered");
    double seconds = now() - began, spent = cpu() - used;
    printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"rss_before\": %ld, \"rss_peak\": %ld, "
           "\"records\": %ld, \"value_bytes\": %ld}\n",
           seconds, spent, before, memory("VmHWM"), records, records * size);
    return 0;
}
