/*
 * peers.c - what the rows are measured against.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "test/bench/bench.h"

#define PUMP_CHUNK    (256u * 1024)
#define FIO_TEXT_MAX  (1u << 20)
#define FIO_SIZE      "1g"
#define FIO_KINDS_MAX 32

static uint8_t *cold(uint64_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        bench_die("no memory");
    memset(memory, 0x5a, bytes);
    return memory;
}

double peer_memcpy_gb_per_s(uint64_t piece_bytes, uint64_t total_bytes)
{
    uint8_t *from = cold(total_bytes), *to = cold(total_bytes);
    uint64_t begin = test_now_ns();
    for (uint64_t at = 0; at + piece_bytes <= total_bytes; at += piece_bytes)
        memcpy(to + at, from + at, piece_bytes);
    double seconds = (double)(test_now_ns() - begin) / 1e9;
    munmap(from, total_bytes);
    munmap(to, total_bytes);
    return (double)total_bytes / BENCH_GB / seconds;
}

static void pump_send(uint16_t port, uint64_t piece_bytes, uint64_t total_bytes)
{
    uint8_t *memory = cold(total_bytes);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = port,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        _exit(1);
    uint64_t sum = 0;
    for (uint64_t at = 0; at + piece_bytes <= total_bytes; at += piece_bytes)
        for (uint64_t off = 0; off < piece_bytes; off += PUMP_CHUNK) {
            uint64_t n = piece_bytes - off < PUMP_CHUNK ? piece_bytes - off : PUMP_CHUNK;
            sum += fb_hash64(memory + at + off, n, 0);
            for (uint64_t sent = 0; sent < n;) {
                ssize_t got = send(fd, memory + at + off + sent, n - sent, MSG_NOSIGNAL);
                if (got <= 0)
                    _exit(1);
                sent += (uint64_t)got;
            }
        }
    close(fd);
    _exit(sum == 1 ? 2 : 0);
}

static double pump_receive(int fd, uint64_t piece_bytes, uint64_t total_bytes)
{
    uint8_t *memory = cold(total_bytes);
    uint64_t begin = 0, sum = 0;
    total_bytes -= total_bytes % piece_bytes;
    for (uint64_t at = 0; at < total_bytes; at += PUMP_CHUNK) {
        uint64_t want = total_bytes - at < PUMP_CHUNK ? total_bytes - at : PUMP_CHUNK;
        for (uint64_t got = 0; got < want;) {
            ssize_t n = recv(fd, memory + at + got, want - got, 0);
            if (n <= 0)
                bench_die("the pump broke off");
            if (begin == 0)
                begin = test_now_ns();
            got += (uint64_t)n;
        }
        sum += fb_hash64(memory + at, want, 0);
    }
    double seconds = (double)(test_now_ns() - begin) / 1e9;
    munmap(memory, total_bytes);
    return sum == 1 ? 0 : (double)total_bytes / BENCH_GB / seconds;
}

double peer_pump_gb_per_s(uint64_t piece_bytes, uint64_t total_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)
        bench_die("no listener for the pump");
    pid_t pid = fork();
    if (pid == 0)
        pump_send(address.sin_port, piece_bytes, total_bytes);
    int fd = accept(listener, NULL, NULL);
    double rate = pump_receive(fd, piece_bytes, total_bytes);
    close(fd);
    close(listener);
    waitpid(pid, NULL, 0);
    return rate;
}

/* ---- fio ---- */

/* The same command is printed once. */
static void say_once(const char *rw, uint64_t block_bytes, unsigned depth, const char *command)
{
    static struct {
        char rw[16];
        uint64_t block_bytes;
        unsigned depth;
    } said[FIO_KINDS_MAX];
    static unsigned count;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(said[i].rw, rw) == 0 && said[i].block_bytes == block_bytes &&
            said[i].depth == depth)
            return;
    if (count < FIO_KINDS_MAX) {
        snprintf(said[count].rw, sizeof(said[count].rw), "%s", rw);
        said[count].block_bytes = block_bytes;
        said[count++].depth = depth;
    }
    printf("    $ %s\n", command);
}

static double fio_once(const struct bench *bench, const char *rw, uint64_t block_bytes,
                       unsigned depth)
{
    char command[2 * BENCH_TEXT_MAX];
    snprintf(command, sizeof(command),
             "fio --name=peer --filename=%s/fio.file --rw=%s --bs=%llu --iodepth=%u "
             "--ioengine=io_uring --direct=1 "
             "--size=" FIO_SIZE " --output-format=json %s",
             bench->directory, rw, (unsigned long long)block_bytes, depth,
             strcmp(rw, "write") == 0 ? "--end_fsync=1" : "--runtime=2 --time_based");
    say_once(rw, block_bytes, depth, command);
    FILE *pipe = popen(command, "r");
    char *text = malloc(FIO_TEXT_MAX);
    size_t got = pipe != NULL ? fread(text, 1, FIO_TEXT_MAX - 1, pipe) : 0;
    text[got] = '\0';
    int status = pipe != NULL ? pclose(pipe) : -1;
    const char *begin = strchr(text, '{');
    json_error_t error;
    json_t *root = begin != NULL ? json_loads(begin, JSON_DISABLE_EOF_CHECK, &error) : NULL;
    if (status != 0 || root == NULL)
        bench_die("fio failed: %.200s", text);
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    json_t *side = json_object_get(job, strstr(rw, "write") != NULL ? "write" : "read");
    double rate = json_number_value(json_object_get(side, "bw_bytes")) / BENCH_GB;
    json_decref(root);
    free(text);
    return rate;
}

double peer_fio_gb_per_s(const struct bench *bench, const char *rw, uint64_t block_bytes)
{
    static const unsigned depths[] = {4, 16, 32};
    double best = 0;
    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        double rate = fio_once(bench, rw, block_bytes, depths[i]);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- Redis ---- */

struct peer_redis {
    pid_t pid;
    redisContext *context;
    char socket[BENCH_TEXT_MAX];
};

struct peer_redis *peer_redis_open(const struct bench *bench)
{
    struct peer_redis *redis = calloc(1, sizeof(*redis));
    snprintf(redis->socket, sizeof(redis->socket), "%.400s/redis.sock", bench->directory);
    printf("    $ redis-server --port 0 --unixsocket %s --save \"\" --dir %s\n", redis->socket,
           bench->directory);
    fflush(stdout);
    redis->pid = fork();
    if (redis->pid == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL)
            _exit(1);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", redis->socket,
               "--save", "", "--dir", bench->directory, (char *)NULL);
        _exit(127);
    }
    for (unsigned i = 0; i < 100; i++) {
        test_sleep_ms(50);
        redis->context = redisConnectUnix(redis->socket);
        if (redis->context != NULL && redis->context->err == 0)
            return redis;
        if (redis->context != NULL)
            redisFree(redis->context);
    }
    bench_die("redis-server did not start: tools/setup bench installs it");
}

void peer_redis_close(struct peer_redis *redis)
{
    redisFree(redis->context);
    kill(redis->pid, SIGTERM);
    waitpid(redis->pid, NULL, 0);
    free(redis);
}

double peer_redis_cpu_s(const struct peer_redis *redis)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6 +
           bench_process_s(redis->pid);
}

void peer_redis_set(struct peer_redis *redis, const char *key, const void *value, size_t bytes)
{
    redisReply *reply = redisCommand(redis->context, "SET %s %b", key, value, bytes);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: SET failed");
    freeReplyObject(reply);
}

double peer_redis_get_us(struct peer_redis *redis, const char *key, size_t bytes)
{
    uint64_t begin = test_now_ns();
    redisReply *reply = redisCommand(redis->context, "GET %s", key);
    double us = (double)(test_now_ns() - begin) / 1e3;
    if (reply == NULL || reply->len != bytes)
        bench_die("redis: GET failed");
    freeReplyObject(reply);
    return us;
}

double peer_redis_exists_us(struct peer_redis *redis, unsigned keys)
{
    const char **words = calloc(keys + 1, sizeof(*words));
    char *text = calloc(keys, 48);
    words[0] = "EXISTS";
    for (unsigned i = 0; i < keys; i++) {
        bench_key(text + (size_t)i * 48, i, 0);
        words[i + 1] = text + (size_t)i * 48;
    }
    uint64_t begin = test_now_ns();
    redisReply *reply = redisCommandArgv(redis->context, (int)keys + 1, words, NULL);
    double us = (double)(test_now_ns() - begin) / 1e3;
    if (reply == NULL || reply->type != REDIS_REPLY_INTEGER)
        bench_die("redis: EXISTS failed");
    freeReplyObject(reply);
    free(words);
    free(text);
    return us;
}
