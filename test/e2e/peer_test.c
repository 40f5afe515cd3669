/*
 * Who may share memory with a real forebayd, and when that memory is free again. Clients are
 * processes of their own that speak raw frames and stop at the worst moment: killed in mid-put,
 * stopped in the middle of a copy, stopped until their grant has expired, cut off but alive,
 * forked, of another user.
 *
 * "Free" is what the node's metrics say of its pool. Cannot show: that bytes are right (the tests
 * of the client library do), nor that nothing was written into reused memory (the simulator does).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/reason.h"
#include "base/result.h"
#include "proto/wire.h"
#include "test/lib/server.h"

#define POOL_BYTES  FB_MIB(64)
#define VALUE_BYTES FB_MIB(8)
#define WAIT_MS     5000
#define FREE_MS     500 /* memory is back so soon after its last user is gone */

/* A value whose copy takes long enough to be stopped in its midst. */
#define BIG_POOL_BYTES  FB_MIB(512)
#define BIG_VALUE_BYTES UINT64_C(200000000)
#define COPY_STEP_BYTES FB_KIB(64)
#define COPY_TRIES      20
#define MAP             1
#define RUNS_MAX        1024

static struct test_server server;
static char directory[TEST_SERVER_PATH_BYTES];

/* ---- a client of raw frames ---- */

struct raw {
    int fd;
    int pool_fd; /* -1: none came */
    uint8_t frame[FB_FRAME_BYTES_MAX];
    struct fb_wire_header header;
    struct fb_msg_welcome welcome;
    uint16_t ns;
    uint64_t epoch;
    uint64_t granted_bytes; /* by the runs that came */
    uint32_t run_count;
    struct fb_wire_run runs[RUNS_MAX];
};

/* In a child nothing may fail quietly: it ends with the line as its code, and the parent sees it.
 */
#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "peer_test.c:%d: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
            _exit(99);                                                                           \
        }                                                                                        \
    } while (0)

static void raw_connect(struct raw *raw)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof(to.sun_path), "%.107s", server.address + strlen("unix:"));
    raw->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    raw->pool_fd = -1;
    MUST(raw->fd >= 0 && connect(raw->fd, (struct sockaddr *)&to, sizeof(to)) == 0);
}

static struct fb_writer raw_begin(struct raw *raw)
{
    struct fb_writer writer;
    fb_writer_init(&writer, raw->frame, sizeof(raw->frame));
    fb_wire_frame_begin(&writer);
    return writer;
}

static void raw_send(struct raw *raw, struct fb_writer *writer, uint8_t type, uint64_t op)
{
    fb_wire_frame_end(writer, 0, type, 0, op, type == FB_MSG_HELLO ? 0 : MAP);
    MUST(fb_writer_ok(writer));
    MUST(send(raw->fd, raw->frame, writer->at_bytes, MSG_NOSIGNAL) == (ssize_t)writer->at_bytes);
}

/* Reads exactly so many bytes, and a descriptor if one comes with them. */
static void raw_read(struct raw *raw, uint8_t *out, size_t bytes)
{
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control;
    while (bytes > 0) {
        struct iovec iov = {.iov_base = out, .iov_len = bytes};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof(control)};
        ssize_t got = recvmsg(raw->fd, &message, MSG_CMSG_CLOEXEC);
        MUST(got > 0);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head != NULL && head->cmsg_type == SCM_RIGHTS)
            memcpy(&raw->pool_fd, CMSG_DATA(head), sizeof(int));
        out += got;
        bytes -= (size_t)got;
    }
}

/* The next frame, which must be of this type; a reader of its payload. */
static struct fb_reader raw_expect(struct raw *raw, uint8_t type)
{
    const char *bad;
    raw_read(raw, raw->frame, FB_WIRE_HEADER_BYTES);
    MUST(fb_wire_header_decode(raw->frame, &raw->header, &bad) == FB_OK);
    raw_read(raw, raw->frame + FB_WIRE_HEADER_BYTES, raw->header.payload_bytes);
    MUST(raw->header.type == type);
    struct fb_reader reader;
    fb_reader_init(&reader, raw->frame + FB_WIRE_HEADER_BYTES, raw->header.payload_bytes);
    return reader;
}

static void raw_hello(struct raw *raw, uint64_t nonce, uint64_t ended)
{
    const char *bad;
    struct fb_writer writer = raw_begin(raw);
    fb_wire_hello_encode(&writer, &(struct fb_msg_hello){.features = FB_FEATURE_SHM,
                                                         .client_nonce = nonce,
                                                         .ended_session = ended});
    raw_send(raw, &writer, FB_MSG_HELLO, 0);
    struct fb_reader reader = raw_expect(raw, FB_MSG_WELCOME);
    MUST(fb_wire_welcome_decode(&reader, &raw->welcome, &bad) == FB_OK);
}

static void raw_namespace(struct raw *raw)
{
    static const uint8_t fields[] = {1, 1, 4, 0, 0, 0, 'p', 'e', 'e', 'r'};
    const char *bad;
    struct fb_writer writer = raw_begin(raw);
    fb_wire_namespace_encode(&writer, &(struct fb_msg_namespace){.deadline_ms = 5000,
                                                                 .fields = fields,
                                                                 .fields_bytes = sizeof(fields)});
    raw_send(raw, &writer, FB_MSG_NAMESPACE, 1);
    struct fb_msg_namespace_done done;
    struct fb_reader reader = raw_expect(raw, FB_MSG_NAMESPACE_DONE);
    MUST(fb_wire_namespace_done_decode(&reader, &done, &bad) == FB_OK && done.result == FB_OK);
    raw->ns = done.ns;
    raw->epoch = done.epoch;
}

/* The runs of one GRANT. */
static void raw_take_runs(struct raw *raw)
{
    struct fb_reader reader = raw_expect(raw, FB_MSG_GRANT);
    struct fb_msg_grant grant;
    const char *bad;
    MUST(fb_wire_grant_decode(&reader, &grant, &bad) == FB_OK);
    MUST(raw->run_count + grant.run_count <= RUNS_MAX);
    for (uint32_t i = 0; i < grant.run_count; i++) {
        struct fb_wire_run run = fb_wire_run_at(grant.runs, i);
        raw->runs[raw->run_count++] = run;
        raw->granted_bytes += run.len;
    }
}

static void raw_put(struct raw *raw, const char *key, uint64_t bytes)
{
    struct fb_writer writer = raw_begin(raw);
    fb_wire_put_encode(&writer, &(struct fb_msg_put){.key = {.ns = raw->ns,
                                                             .epoch = raw->epoch,
                                                             .key = (const uint8_t *)key,
                                                             .key_bytes = (uint16_t)strlen(key),
                                                             .deadline_ms = 60000},
                                                     .value_bytes = bytes});
    raw_send(raw, &writer, FB_MSG_PUT, 2);
    do
        raw_take_runs(raw);
    while ((raw->header.flags & FB_FRAME_MORE) != 0);
}

/* A session with shared memory and a grant of so many bytes. */
static void raw_granted_bytes(struct raw *raw, const char *key, uint64_t bytes)
{
    raw_connect(raw);
    raw_hello(raw, 77, 0);
    MUST((raw->welcome.features & FB_FEATURE_SHM) != 0 && raw->pool_fd >= 0);
    raw_namespace(raw);
    raw_put(raw, key, bytes);
}

static void raw_granted(struct raw *raw, const char *key)
{
    raw_granted_bytes(raw, key, VALUE_BYTES);
}

/* ---- children ---- */

struct child {
    pid_t pid;
    int words; /* what it says, a byte for each step */
};

/* Starts a child that runs `body`, and dies with us. */
static struct child start(void (*body)(int words))
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t parent = getpid();
    struct child child = {.pid = fork(), .words = pipe_fds[0]};
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipe_fds[0]);
        MUST(getppid() == parent);
        body(pipe_fds[1]);
        _exit(0);
    }
    close(pipe_fds[1]);
    return child;
}

static void say(int words)
{
    MUST(write(words, "x", 1) == 1);
}

static void await_word(const struct child *child)
{
    char word;
    assert_int_equal(read(child->words, &word, 1), 1);
}

/* Ends it; returns how it ended. */
static int end(struct child *child)
{
    int status;
    kill(child->pid, SIGKILL);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->words);
    return status;
}

/* ---- what the node says ---- */

static uint64_t metric(const char *name)
{
    uint64_t value = 0;
    assert_true(test_server_metric(&server, name, &value));
    return value;
}

/* Waits until a figure is what it should be; false if it is not by then. */
static bool becomes_by(const char *name, uint64_t least, uint64_t most, uint64_t until)
{
    uint64_t value;
    do {
        value = metric(name);
        if (value >= least && value <= most)
            return true;
        test_sleep_ms(10);
    } while (test_now_ns() < until);
    print_message("%s is %llu\n", name, (unsigned long long)value);
    return false;
}

static bool becomes(const char *name, uint64_t least, uint64_t most)
{
    return becomes_by(name, least, most, test_now_ns() + WAIT_MS * FB_MS_NS);
}

#define RESERVED   "forebay_pool_reserved_bytes"
#define QUARANTINE "forebay_pool_quarantine_bytes"

/* True if nothing is reserved any more, and that at once. */
static bool is_free(void)
{
    uint64_t until = test_now_ns() + FREE_MS * FB_MS_NS;
    return becomes_by(RESERVED, 0, 0, until) && becomes_by(QUARANTINE, 0, 0, until) &&
           becomes_by("forebay_sessions_leaving", 0, 0, until);
}

static int start_server(uint64_t pool_bytes)
{
    char program[TEST_SERVER_PATH_BYTES], self[TEST_SERVER_PATH_BYTES];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    /* build/X/test/e2e/peer_test -> build/X/forebayd */
    for (int i = 0; i < 3; i++)
        *strrchr(self, '/') = '\0';
    snprintf(program, sizeof(program), "%.400s/forebayd", self);
    if (directory[0] == '\0')
        assert_int_equal(test_directory_make("peer", directory, sizeof(directory)), 0);
    struct test_server_options options = {.program = program,
                                          .directory = directory,
                                          .pool_bytes = pool_bytes,
                                          .admin = true};
    if (test_server_start(&server, &options) != 0)
        fail_msg("%s", server.error);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return start_server(POOL_BYTES);
}

static int setup_big(void **state)
{
    (void)state;
    return start_server(BIG_POOL_BYTES);
}

static int teardown(void **state)
{
    (void)state;
    if (test_server_stop(&server, 20000) != 0)
        fail_msg("%s", server.error);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    test_directory_remove(directory);
    return 0;
}

/* ---- tests ---- */

static void put_and_wait(int words)
{
    static struct raw raw;
    raw_granted(&raw, "key");
    say(words);
    pause();
}

static void test_killed_in_mid_put(void **state)
{
    (void)state;
    struct child child = start(put_and_wait);
    await_word(&child);
    assert_true(metric(RESERVED) >= VALUE_BYTES);
    assert_true(WIFSIGNALED(end(&child)));
    assert_true(is_free());
}

/* How far a child has copied; it and the test both see it. */
static _Atomic uint64_t *copied;

static void copy_run(uint8_t *to, uint64_t bytes)
{
    static const uint8_t step[COPY_STEP_BYTES] = {'x'};
    for (uint64_t at = 0; at < bytes; at += COPY_STEP_BYTES) {
        uint64_t left = bytes - at;
        uint64_t now = left < COPY_STEP_BYTES ? left : COPY_STEP_BYTES;
        memcpy(to + at, step, now);
        atomic_fetch_add(copied, now);
    }
}

/* Copies into its grant, step by step. */
static void copy_big(int words)
{
    static struct raw raw;
    raw_granted_bytes(&raw, "big", BIG_VALUE_BYTES);
    MUST(raw.granted_bytes >= BIG_VALUE_BYTES);
    uint8_t *pool =
        mmap(NULL, raw.welcome.pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, raw.pool_fd, 0);
    MUST(pool != MAP_FAILED);
    say(words);
    for (uint32_t i = 0; i < raw.run_count; i++)
        copy_run(pool + raw.runs[i].off, raw.runs[i].len);
    pause();
}

/* Starts a writer and stops it when it has copied a part. False if it was too quick. */
static bool stop_in_mid_copy(struct child *child)
{
    atomic_store(copied, 0);
    *child = start(copy_big);
    await_word(child);
    while (atomic_load(copied) < BIG_VALUE_BYTES / 8)
        assert_int_equal(waitpid(child->pid, NULL, WNOHANG), 0);
    assert_int_equal(kill(child->pid, SIGSTOP), 0);
    int status;
    assert_int_equal(waitpid(child->pid, &status, WUNTRACED), child->pid);
    assert_true(WIFSTOPPED(status));
    if (atomic_load(copied) < BIG_VALUE_BYTES)
        return true;
    end(child);
    return false;
}

/* Kills the stopped writer: before its grant expires, or when that has put its memory in
 * quarantine. */
static void kill_in_mid_copy(bool late)
{
    struct child child;
    bool stopped = false;
    for (unsigned i = 0; i < COPY_TRIES && !stopped; i++)
        stopped = stop_in_mid_copy(&child);
    assert_true(stopped);
    uint64_t so_far = atomic_load(copied);
    assert_true(metric(RESERVED) >= BIG_VALUE_BYTES);
    if (late) {
        assert_true(becomes_by(QUARANTINE, BIG_VALUE_BYTES, BIG_POOL_BYTES,
                               test_now_ns() + 2 * WAIT_MS * FB_MS_NS));
        assert_int_equal(metric(RESERVED), 0);
    }
    assert_int_equal(atomic_load(copied), so_far);
    assert_true(WIFSIGNALED(end(&child)));
    assert_true(is_free());
}

static void test_stopped_in_mid_copy_and_killed(void **state)
{
    (void)state;
    copied = mmap(NULL, sizeof(*copied), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(copied, MAP_FAILED);
    kill_in_mid_copy(false);
    kill_in_mid_copy(true);
    munmap((void *)copied, sizeof(*copied));
}

static void cut_off_but_alive(int words)
{
    static struct raw raw, next;
    raw_granted(&raw, "key");
    close(raw.fd);
    say(words);
    char word;
    (void)word;
    /* The test looks, then lets us go on by SIGUSR1. */
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    say(words);
    MUST(sigwait(&set, &number) == 0);
    raw_connect(&next);
    raw_hello(&next, 77, raw.welcome.session);
    say(words);
    pause();
}

static void test_cut_off_but_alive_is_quarantined_until_it_says_so(void **state)
{
    (void)state;
    struct child child = start(cut_off_but_alive);
    await_word(&child);
    await_word(&child);
    assert_true(becomes(QUARANTINE, VALUE_BYTES, POOL_BYTES));
    test_sleep_ms(300);
    assert_true(metric(QUARANTINE) >= VALUE_BYTES); /* no time frees it */
    kill(child.pid, SIGUSR1);
    await_word(&child);
    assert_true(becomes(QUARANTINE, 0, 0));
    end(&child);
    assert_true(is_free());
}

static void test_cut_off_and_then_dead(void **state)
{
    (void)state;
    struct child child = start(cut_off_but_alive);
    await_word(&child);
    await_word(&child);
    assert_true(becomes(QUARANTINE, VALUE_BYTES, POOL_BYTES));
    end(&child);
    assert_true(is_free());
}

static void granted_then_release(int words)
{
    static struct raw raw;
    raw_granted(&raw, "stopped");
    say(words);
    /* Stopped here, until long after the grant has expired. */
    struct fb_reader reader = raw_expect(&raw, FB_MSG_PUT_DONE);
    struct fb_msg_put_done done;
    const char *bad;
    MUST(fb_wire_put_done_decode(&reader, &done, &bad) == FB_OK);
    MUST(done.result < 0 && done.reason == FB_REASON_GRANT_EXPIRED);
    MUST((raw.header.flags & FB_FRAME_RELEASE_WANTED) != 0);
    struct fb_writer writer = raw_begin(&raw);
    raw_send(&raw, &writer, FB_MSG_RELEASE, 2);
    say(words);
    pause();
}

static void put_the_same_key(int words)
{
    static struct raw raw;
    raw_granted(&raw, "stopped"); /* waits for the other writer's end */
    say(words);
    struct fb_writer writer = raw_begin(&raw);
    raw_send(&raw, &writer, FB_MSG_RELEASE, 2);
    (void)raw_expect(&raw, FB_MSG_PUT_DONE);
}

static void test_stopped_until_its_grant_expires(void **state)
{
    (void)state;
    struct child writer = start(granted_then_release);
    await_word(&writer);
    kill(writer.pid, SIGSTOP);
    uint64_t begun = test_now_ns();
    struct child waiter = start(put_the_same_key);
    await_word(&waiter); /* it has become the writer */
    uint64_t took_ms = (test_now_ns() - begun) / FB_MS_NS;
    assert_in_range(took_ms, 4000, 15000);
    assert_true(metric(QUARANTINE) >= VALUE_BYTES); /* the stopped one may still write there */
    int status;
    assert_int_equal(waitpid(waiter.pid, &status, 0), waiter.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(waiter.words);
    kill(writer.pid, SIGCONT);
    await_word(&writer);
    assert_true(becomes(QUARANTINE, 0, 0));
    end(&writer);
    assert_true(is_free());
}

/* The connection's process dies; its child holds a copy of the socket. */
static void fork_and_die(int words)
{
    static struct raw raw;
    raw_granted(&raw, "key");
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        for (unsigned i = 0; i < 100; i++)
            test_sleep_ms(100);
        _exit(0);
    }
    MUST(write(words, &pid, sizeof(pid)) == sizeof(pid));
    pause();
}

static void test_dead_although_a_child_holds_the_socket(void **state)
{
    (void)state;
    struct child child = start(fork_and_die);
    pid_t grandchild;
    assert_int_equal(read(child.words, &grandchild, sizeof(grandchild)), sizeof(grandchild));
    assert_true(metric(RESERVED) >= VALUE_BYTES);
    end(&child);
    assert_true(is_free());
    assert_int_equal(kill(grandchild, 0), 0); /* it lives: the socket was open all the time */
    kill(grandchild, SIGKILL);
}

static void seal_body(int words)
{
    static struct raw raw;
    raw_connect(&raw);
    raw_hello(&raw, 77, 0);
    MUST(raw.pool_fd >= 0);
    MUST(ftruncate(raw.pool_fd, 4096) == -1 && errno == EPERM);
    MUST(ftruncate(raw.pool_fd, (off_t)(2 * POOL_BYTES)) == -1 && errno == EPERM);
    struct stat status;
    MUST(fstat(raw.pool_fd, &status) == 0 && (uint64_t)status.st_size == raw.welcome.pool_bytes);
    say(words);
}

static void test_nobody_can_shrink_the_pool(void **state)
{
    (void)state;
    struct child child = start(seal_body);
    await_word(&child);
    end(&child);
    assert_true(test_server_alive(&server));
}

static void other_user(int words)
{
    static struct raw raw;
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    raw_connect(&raw);
    raw_hello(&raw, 77, 0);
    MUST((raw.welcome.features & FB_FEATURE_SHM) == 0 && raw.pool_fd < 0);
    say(words);
}

static void test_another_user_gets_no_memory(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can become another user */
    /* The socket and its directory are this user's alone; the operator may open them. */
    assert_int_equal(chmod(server.address + strlen("unix:"), 0666), 0);
    assert_int_equal(chmod(directory, 0755), 0);
    struct child child = start(other_user);
    await_word(&child);
    end(&child);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_killed_in_mid_put),
        cmocka_unit_test_setup_teardown(test_stopped_in_mid_copy_and_killed, setup_big, teardown),
        TEST(test_cut_off_but_alive_is_quarantined_until_it_says_so),
        TEST(test_cut_off_and_then_dead),
        TEST(test_stopped_until_its_grant_expires),
        TEST(test_dead_although_a_child_holds_the_socket),
        TEST(test_nobody_can_shrink_the_pool),
        TEST(test_another_user_gets_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, remove_directory);
}
