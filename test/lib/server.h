/*
 * A real forebayd as a child of a test: start, look at from outside, stop, kill.
 *
 * "From outside" is meant: memory is what /proc says of the process plus what its memfds hold,
 * SSD bytes are what the file system says of the files in its directory, bytes read are what the
 * kernel counted. Only metrics are the server's own word.
 *
 * A server is ended by its pid alone, and it dies with the thread that started it (parent-death
 * signal), so no test leaves one behind.
 */
#ifndef TEST_LIB_SERVER_H
#define TEST_LIB_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TEST_SERVER_PATH_BYTES 512
#define TEST_SERVER_EXTRA_MAX  12
/* Room for the socket's address, "unix:" included; sun_path has 108 bytes. */
#define TEST_SERVER_ADDRESS_BYTES 128

/* How to start one. All zero but `directory` and `pool_bytes` is allowed: DRAM only. */
struct test_server_options {
    const char *program;   /* forebayd; NULL: the one in the folder of the running program */
    const char *directory; /* from test_directory_make(): gets socket, log file and SSD file */
    uint64_t pool_bytes;
    uint64_t ssd_cap_bytes;                   /* 0: no SSD */
    uint32_t index_entries;                   /* 0: the server's default */
    const char *persist;                      /* NULL: the server's default */
    const char *io;                           /* NULL: the server's choice */
    const char *bugs;                         /* planted bugs, hooks build; NULL: none */
    const char *extra[TEST_SERVER_EXTRA_MAX]; /* further arguments, ended by NULL */
    bool admin;                               /* serve /metrics and /health on a free port */
    unsigned ready_ms;                        /* how long the start may take; 0: 20,000 */
};

struct test_server {
    pid_t pid; /* 0: not running */
    uint16_t admin_port;
    int memory_fds[4]; /* numbers of the server's memfds, -1: none */
    unsigned start_ms; /* how long the last start took */
    int exit_status;   /* of the last end, as waitpid() gives it */
    char directory[TEST_SERVER_PATH_BYTES];
    char ssd_path[TEST_SERVER_PATH_BYTES];
    char log_path[TEST_SERVER_PATH_BYTES];
    char address[TEST_SERVER_ADDRESS_BYTES]; /* for a client: "unix:..." */
    char error[512];                         /* why the last call failed */
};

/*
 * Makes a fresh directory whose name begins with `name`, below $TEST_DIR, or /var/tmp if that is
 * not set, or the folder of the running program if /var/tmp is a tmpfs (which knows no O_DIRECT).
 * Returns 0 or -errno.
 */
int test_directory_make(const char *name, char *out, size_t out_bytes);

/* Deletes a directory made by test_directory_make() with all that is in it. */
void test_directory_remove(const char *directory);

/* Free bytes of the file system that holds `directory`; 0 if it cannot be asked. */
uint64_t test_directory_free_bytes(const char *directory);

/*
 * Starts a server and waits until it says that it serves. Returns 0, or -1 with `server->error`
 * set: the server's own last line if it ended, or that it was not ready in time (it is killed).
 */
int test_server_start(struct test_server *server, const struct test_server_options *options);

/* SIGTERM, waits up to timeout_ms, then SIGKILL. Returns 0 if it ended by itself with code 0. */
int test_server_stop(struct test_server *server, unsigned timeout_ms);

/* SIGKILL, and waits until the process is gone. */
void test_server_kill(struct test_server *server);

/* False if the server has ended by itself; then `error` has its last line. Never blocks. */
bool test_server_alive(struct test_server *server);

/* The last line of the server's log that has this word, "" if there is none. */
void test_server_line(const struct test_server *server, const char *word, char *out,
                      size_t out_bytes);
/* The last one that is not empty. */
void test_server_last_line(const struct test_server *server, char *out, size_t out_bytes);

/*
 * Fetches a page of the admin port into `out` (zero-terminated, cut at out_bytes). Returns the
 * HTTP status, or -1 if it could not be had within timeout_ms.
 */
int test_server_fetch(const struct test_server *server, const char *page, char *out,
                      size_t out_bytes, unsigned timeout_ms);

/*
 * One value of /metrics. `series` is the whole name, labels included as they are printed. Returns
 * false if there is no such line.
 */
bool test_server_metric(const struct test_server *server, const char *series, uint64_t *value);

/* The sum of all series of one name, whatever their labels. False if there is none. */
bool test_server_metric_sum(const struct test_server *server, const char *name, uint64_t *value);

/* What the server takes now, seen from outside. Zero for what cannot be read. */
struct test_server_use {
    uint64_t
        memory_bytes;   /* anonymous + file pages + the greater of mapped shared and memfd pages */
    uint64_t ssd_bytes; /* allocated blocks of all regular files but the log */
    uint64_t disk_free_bytes; /* of the file system that holds its directory */
    uint64_t read_bytes;      /* from the device, since its start */
    uint64_t write_bytes;
    uint64_t cpu_ms;
};
void test_server_look(const struct test_server *server, struct test_server_use *use);

/* Looks every few milliseconds, in a thread, and keeps the peaks. */
struct test_watch {
    pthread_t thread;
    atomic_bool stop;
    bool running;
    const struct test_server *server;
    uint64_t memory_cap_bytes, ssd_cap_bytes; /* 0: not checked */
    uint64_t memory_peak_bytes, ssd_peak_bytes;
    uint64_t disk_free_least_bytes; /* of all samples; 0 before the first */
    uint64_t samples;
    uint64_t breaches;
    char breach[160]; /* the first one, in words */
};

/*
 * Starts to watch a running server. The caller stops the watch before it ends the server, and may
 * start it again after a restart: peaks, samples and breaches go on. A fresh watch is all zero.
 */
void test_watch_start(struct test_watch *watch, const struct test_server *server,
                      uint64_t memory_cap_bytes, uint64_t ssd_cap_bytes);

/* Ends the watch. Returns true if no cap was passed and at least one sample was taken. */
bool test_watch_stop(struct test_watch *watch);

/* Monotonic time for tests that run real processes. */
uint64_t test_now_ns(void);
void test_sleep_ms(unsigned ms);

#endif
