#!/usr/bin/env python3
"""The command `forebay` as an operator types it, against a real forebayd.

    test/e2e/cli.py FOLDER [NAME...]     FOLDER has forebay and forebayd; run all tests, or those
                                         whose name contains one of these

Covers: every command with its output and exit code; wrong command lines, and what they say; values from
files, standard input, to files and standard output; keys in hex; environment before default and flag
before environment; a node that is not there; doctor on a sound node, on one without SSD and on one that
loses what it persists (test build); fsck on a sound file, while it is open, after kill -9, and on damage of
every kind of block; a preloaded allocator.

Cannot show: how the node behaves under load (client_test.c, the demo).

The last line is `N passed, N failed`.
"""

import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import daemon  # noqa: E402
from daemon import Daemon, Failed, Skipped, expect  # noqa: E402

MIB = 1 << 20
BLOCK = 4096
folder = ""

# Sanitizers bring an allocator of their own, and are slow: these run with the plain build alone.
PLAIN_ONLY = ("test_preloaded_allocator", "test_a_gigabyte")
# These need faults of the device, which test builds alone have.
HOOKS_ONLY = ("test_doctor_on_a_broken_device", "test_namespace_that_cannot_be_made_durable",
              "test_later_signal_ends_at_once")


class Result:
    """What a command printed, and its exit code."""

    def __init__(self, process):
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr.decode(errors="replace")

    @property
    def text(self):
        return self.out.decode(errors="replace")


def forebay(*arguments, stdin=b"", env=None, node=None, model="m", code=0):
    """Runs the command and checks its exit code."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    if node is not None:
        environment["FOREBAY_ADDRESS"] = "unix:" + node.socket_path
    if model is not None:
        environment["FOREBAY_MODEL"] = model
    environment.update(env or {})
    command = [os.path.join(folder, "forebay")] + list(arguments)
    result = Result(subprocess.run(command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment, timeout=60, check=False))
    if code is not None:
        expect(result.code == code, "%s: exit code %d, not %d: %s%s" %
               (" ".join(arguments), result.code, code, result.text, result.err))
    faults = [line[len("forebay: "):] for line in result.err.splitlines() if line.startswith("forebay: ")]
    for fault in faults:
        codes = daemon.documented_lines("The command", fault)
        expect(codes and (len(faults) > 1 or result.code in codes),
               "docs/operations.md has no row with code %d for: %s" % (result.code, fault))
    return result


def has(text, *words):
    for word in words:
        expect(word in text, "'%s' is not in: %s" % (word, text))


class Node(Daemon):
    """A node with a small SSD tier."""

    def __init__(self, home, *arguments, ssd=True, **how):
        self.ssd_path = os.path.join(home, "forebay.ssd")
        more = ["--ssd-path=" + home, "--ssd-cap=128MB", "--ssd-floor=0"] if ssd else []
        super().__init__(home, *more, *arguments, **how)
        if not self.wait_ready():
            raise Failed("forebayd: " + self.log())


def write_file(home, name, content):
    path = os.path.join(home, name)
    with open(path, "wb") as out:
        out.write(content)
    return path


def read_file(path):
    with open(path, "rb") as content:
        return content.read()


# ---- the command line --------------------------------------------------------------------------


def test_help(_):
    for word in ("--help", "-h", "help"):
        has(forebay(word).text, "Usage: forebay COMMAND", "doctor", "fsck", "Exit codes")
    for command in "put get exists rm ls wait bump status explain doctor fsck".split():
        text = forebay(command, "--help").text
        has(text, "Usage: forebay " + command, "--quiet", "Exit codes")
        has(forebay("help", command).text, "Usage: forebay " + command)
    has(forebay("put", "--help").text, "--upsert", "[FOREBAY_MODEL]", "[FOREBAY_ADDRESS]")


def test_command_is_documented(_):
    """Commands, options with their words and variables, and exit codes: the same in --help and in the document."""
    page = daemon.operations("The command")
    commands = dict(re.findall(r"^  ([a-z]+) {2,}(\S.*)$", forebay("--help").text, re.M))
    rows = dict(re.findall(r"^\| `([a-z]+)` \| [^|]* \| (.*) \|$", page, re.M))
    expect(rows == commands, "commands: %s, documented: %s" % (commands, rows))
    options = {}
    users = {}
    for command in commands:
        for name, words in re.findall(r"^  --([a-z-]+)(?: \S+)?\s+((?:.|\n(?= {20}))*)",
                                      forebay(command, "--help").text, re.M):
            options[name] = re.sub(r"\s+", " ", words).strip()
            users.setdefault(name, set()).add(command)
    rows = re.findall(r"^\| `--([a-z-]+)[^`]*` \| `?([A-Z_]*)`? \| ([^|]*) \| (.*) \|$", page, re.M)
    expect({row[0] for row in rows} == set(options), "options: %s" % ({row[0] for row in rows} ^ set(options)))
    for name, variable, where, words in rows:
        expect(options[name] == words + (" [%s]" % variable if variable else ""), "--%s: %s" % (name, options[name]))
        of = set(re.findall(r"[a-z]+", where.replace("all but", ""))) & set(commands)
        of = set(commands) - of if where.startswith("all") else of
        expect(of == users[name], "--%s is of %s" % (name, sorted(users[name])))
    with open(os.path.join(daemon.ROOT, "src/cli/cli.h"), encoding="utf-8") as file:
        codes = set(re.findall(r"FB_CLI_[A-Z]+ = (\d)", file.read()))
    expect(set(re.findall(r"^\| (\d) \|", page, re.M)) == codes, "exit codes")


def test_version(_):
    """The same number as the daemon's."""
    said = forebay("--version").text
    node = subprocess.run([daemon.forebayd, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    expect(said.startswith("forebay ") and said.split()[1] == node.split()[1], said + node)
    expect(forebay("get", "--version").text == said, "behind a command")


def test_wrong_command_lines(_):
    wrong = [
        ([], "Usage"),
        (["nonsense"], "unknown command 'nonsense'"),
        (["get"], "usage: forebay get"),
        (["get", "a", "b", "c"], "usage: forebay get"),
        (["ls", "a"], "usage: forebay ls"),
        (["get", "k", "--nonsense"], "unknown option '--nonsense'"),
        (["get", "k", "-x"], "unknown option '-x'"),
        (["get", "k", "--upsert"], "'get' does not take --upsert"),
        (["get", "k", "--timeout"], "--timeout needs a value"),
        (["get", "k", "--timeout", "5"], "--timeout '5'"),
        (["get", "k", "--hex=1"], "--hex takes no value"),
        (["get", "k", "--offset", "x"], "--offset 'x'"),
        (["get", "k", "--length", "0"], "at least 1 byte"),
        (["put", "k", "--persist", "never"], "default, off, evict, behind, through"),
        (["put", "k", "--shm=maybe"], "auto, on, off"),
        (["put", "k", "--depth", "70000"], "65535"),
        (["put", "a", "b", "c"], "need a FILE behind each KEY"),
        (["get", "xyz", "--hex"], "hex digits"),
        (["get", "abc", "--hex"], "hex digits"),
        (["get", ""], "1 to 1024 bytes"),
        (["put", "xyz", "--hex"], "hex digits"),
        (["put", "a" * 1025], "1 to 1024 bytes"),
        (["put", "", "/dev/null"], "1 to 1024 bytes"),
        (["put", "good", "/dev/null", "", "/dev/null"], "1 to 1024 bytes"),
        (["exists", "a", "k" * 1025], "1 to 1024 bytes"),
        (["get", "k" * 1025], "1 to 1024 bytes"),
    ]
    for arguments, words in wrong:
        has(forebay(*arguments, code=2).err, words)


def test_no_namespace(home):
    with Node(home, ssd=False) as node:
        has(forebay("get", "k", node=node, model=None, code=2).err, "namespace", "--model", "FOREBAY_MODEL")


def test_no_node(home):
    nowhere = os.path.join(home, "nobody")
    result = forebay("get", "k", "--socket", nowhere, code=4)
    has(result.err, nowhere, "forebayd")
    has(forebay("status", "--address", "tcp:127.0.0.1:1", code=4).err, "tcp:127.0.0.1:1", "refused")
    has(forebay("status", "--address", "nonsense", code=2).err, "unix:/path")


def test_flag_before_environment(home):
    with Node(home, ssd=False) as node:
        bad = {"FOREBAY_ADDRESS": "unix:/nowhere"}
        forebay("status", env=bad, code=4)
        forebay("status", "--socket", node.socket_path, env=bad)
        forebay("status", "--address=unix:" + node.socket_path, env=bad)
        forebay("put", "k", node=node, stdin=b"v")
        forebay("get", "k", "--model", "other", node=node, code=3)
        forebay("get", "k", "--salt", "other", node=node, code=3)
        forebay("get", "k", env={"FOREBAY_SALT": "other"}, node=node, code=3)
        forebay("get", "k", node=node)


def test_namespaces_are_limited(home):
    """More than 64 by default; what is one too many is told as such, and so is a node that takes fewer than it has."""
    with Node(home) as node:
        for i in range(70):
            forebay("exists", "k", node=node, model="m%d" % i, code=3)
        status = json.loads(forebay("status", "--json", node=node, model=None).text)
        expect(status["namespaces"] == 70 and status["namespaces_max"] == 1024, str(status))
        node.end()
    daemon.refuses(home, 3, "--namespaces", cure="format", arguments=["--ssd-path=" + home, "--ssd-cap=128MB",
                                                                 "--ssd-floor=0", "--namespaces=69"])
    with Node(home, "--namespaces=71") as node:
        forebay("exists", "k", node=node, model="m69", code=3)
        forebay("exists", "k", node=node, model="new", code=3)
        got = forebay("exists", "k", node=node, model="newer", code=1)
        has(got.err, "namespace: QUOTA", "kept for good", "--namespaces=71")
        expect(got.err.count("\n") == 1, "one line: " + got.err)
        forebay("exists", "k", node=node, model="m0", code=3)


def test_namespace_that_cannot_be_made_durable(home):
    """A write of the table fails once: the result is named, and the same call succeeds later."""
    with Node(home, "--io-fault=write:7:EIO") as node:
        got, i = None, 0
        while got is None or (got.code == 3 and i < 20):
            i += 1
            got = forebay("exists", "k", node=node, model="m%d" % i, code=None)
        expect(got.code == 1, "no namespace was refused: %s" % node.log())
        has(got.err, "namespace: IO", "device", "again")
        forebay("exists", "k", node=node, model="m%d" % i, code=3)


# ---- values ------------------------------------------------------------------------------------


def test_values(home):
    value = os.urandom(3 * MIB + 17)
    path = write_file(home, "value", value)
    with Node(home) as node:
        for way in (["--shm=on"], ["--shm=off"], ["--address", "tcp:" + node.field("listening", "tcp")]):
            key = "k" + way[0] + way[-1]
            has(forebay("put", key, path, *way, node=node).text, "OK")
            has(forebay("put", key, path, *way, node=node).text, "EXISTS")
            expect(forebay("get", key, *way, node=node).out == value, "other bytes")
            back = os.path.join(home, "back")
            forebay("get", key, back, *way, node=node)
            expect(read_file(back) == value, "other bytes in the file")
            part = forebay("get", key, "--offset=1MB", "--length=1000", *way, node=node).out
            expect(part == value[MIB:MIB + 1000], "other bytes in the range")
            got = forebay("get", key, "--offset=4MB", *way, node=node)
            expect(got.out == b"", "bytes behind the end")
            has(got.err, key + ": the value has %d bytes" % len(value), "--offset is %d" % (4 * MIB))
            expect(forebay("get", key, "--offset=1MB", "--length=1", *way, node=node).err == "", "no words")
        forebay("put", "stdin", node=node, stdin=b"from a pipe")
        forebay("put", "dash", "-", node=node, stdin=b"from a dash")
        expect(forebay("get", "stdin", node=node).out == b"from a pipe", "stdin")
        expect(forebay("get", "dash", "-", node=node).out == b"from a dash", "dash")
        has(forebay("put", "stdin", "--upsert", node=node, stdin=b"newer").text, "OK")
        expect(forebay("get", "stdin", node=node).out == b"newer", "upsert")
        has(forebay("put", "empty", node=node, stdin=b"", code=1).err, "empty: BAD_ARGUMENT", "standard input",
            "1 byte or more")
        # Of several, the others are stored.
        got = forebay("put", "full", path, "none", write_file(home, "nothing", b""), node=node, code=1)
        has(got.err, "none: BAD_ARGUMENT", os.path.join(home, "nothing"), "1 byte or more")
        has(got.text, "full: OK")
        has(forebay("put", "k", os.path.join(home, "absent"), node=node, code=1).err, "absent", "No such file")
        has(forebay("get", "stdin", "/nowhere/x", node=node, code=1).err, "/nowhere/x")
        has(forebay("get", "absent", node=node, code=3).err, "MISS", "no_record")


def test_many_values_at_once(home):
    words = []
    for i in range(20):
        words += ["key-%d" % i, write_file(home, "v%d" % i, b"%d" % i * 1000)]
    with Node(home) as node:
        expect(forebay("put", *words, node=node).text.count(": OK") == 20, "not all were stored")
        for i in range(20):
            expect(forebay("get", "key-%d" % i, node=node).out == b"%d" % i * 1000, "other bytes")


def test_put_options(home):
    with Node(home) as node:
        has(forebay("put", "k", "--persist=through", node=node, stdin=b"v").text, "OK PERSISTED")
        forebay("put", "h", "--persist=off", "--pin=hard", "--group=g", "--depth=3", "--will-return", node=node,
                stdin=b"v")
        has(forebay("wait", "h", node=node, code=1).err, "NOT_PERSISTED")
        forebay("put", "o", "--one-shot", "--quiet", node=node, stdin=b"v")


def test_too_big_names_the_limit(home):
    """The value, the limit and the setting behind it; the limit itself can be put, one byte more cannot."""
    for arguments, ssd, set_by, most in (([], False, "--pool", 24 * MIB), ([], True, "--ssd-cap", 24 * MIB),
                                         (["--index-entries=64"], True, "--index-entries", None)):
        inner = os.path.join(home, set_by)
        os.mkdir(inner)
        more = ["--ssd-cap=96MB"] if ssd else []
        with Node(inner, *more, *arguments, ssd=ssd) as node:
            status = json.loads(forebay("status", "--json", node=node, model=None).text)
            limit = status["value_bytes_max"]
            expect(most is None or limit == most, "the limit is %d" % limit)
            expect(status["value_bytes_max_set_by"] == set_by[2:], str(status))
            expect(node.metric("forebay_value_bytes_max") == limit, "the metric")
            forebay("put", "most", node=node, stdin=b"x" * limit)
            got = forebay("put", "more", node=node, stdin=b"x" * (limit + 1), code=1)
            has(got.err, "more: TOO_BIG: %d bytes" % (limit + 1), "up to %d (" % limit, set_by)
            expect(got.err.count("\n") == 1, "one line: " + got.err)
            if most is not None:  # the whole pool was needed, so that the limits are told
                expect(node.field("limits", "value_at_most") == "24MiB", node.log())


def test_value_limit_is_said_at_start(home):
    for name, arguments, limit_of in (("cap", ["--ssd-cap=64MB"], "--ssd-cap"), ("fits", [], None),
                                      ("index", ["--index-entries=64"], "--index-entries")):
        inner = os.path.join(home, name)
        os.mkdir(inner)
        with Node(inner, *arguments) as node:
            if limit_of is None:
                expect(" value_limit " not in node.log(), "it warns without need: " + node.log())
                continue
            for field, word in (("limit_of", limit_of), ("cure", limit_of), ("pool_would_allow", "30MiB"),
                                ("value_at_most", "16MiB")):
                has(node.field("value_limit", field), word)


def is_same(one, other):
    return subprocess.run(["cmp", one, other], check=False).returncode == 0


def test_a_gigabyte(home):
    """The longest value there is, through shared memory and TCP, from memory and from SSD."""
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(re.search(r"^MemAvailable: +(\d+) kB", file.read(), re.M).group(1)) << 10
    disk = os.statvfs(home)
    if memory < 4 << 30 or disk.f_bavail * disk.f_frsize < 8 << 30:
        raise Skipped("4 GiB of memory and 8 GiB of disk are needed, %d MiB and %d MiB are free" %
                      (memory >> 20, disk.f_bavail * disk.f_frsize >> 20))
    piece = os.urandom(8 * MIB + 1)  # no part of the value is the same as another
    path = os.path.join(home, "value")
    with open(path, "wb") as out:
        for _ in range(128):
            out.write(piece)
        out.truncate(1 << 30)
    back = os.path.join(home, "back")
    with Node(home, "--pool=1100MiB", "--ssd-cap=4GiB") as node:
        status = json.loads(forebay("status", "--json", node=node, model=None).text)
        expect(status["value_bytes_max"] == 1 << 30 and status["value_bytes_max_set_by"] == "format", str(status))
        tcp = "--address=tcp:" + node.field("listening", "tcp")
        for way, key in (("--shm=on", "shm"), (tcp, "tcp")):
            has(forebay("put", key, path, way, node=node).text, "OK")
            forebay("get", key, back, way, node=node)
            expect(is_same(path, back), "other bytes: " + key)
        # The pool held one of them, so that the first is read from the device now.
        read = node.metric("forebay_log_read_bytes_total")
        forebay("get", "shm", back, node=node)
        expect(is_same(path, back), "other bytes from SSD")
        read = node.metric("forebay_log_read_bytes_total") - read
        expect(read >= 900 * MIB, "%d bytes came from the device" % read)
        with open(path, "ab") as out:
            out.write(b"x")
        has(forebay("put", "more", path, node=node, code=1).err, "TOO_BIG: 1073741825 bytes", "up to 1073741824 ",
            "format")


def test_keys_in_hex(home):
    with Node(home) as node:
        forebay("put", "00ff5c41", "--hex", node=node, stdin=b"v")
        expect(forebay("get", "00FF5c41", "--hex", node=node).out == b"v", "hex")
        expect(forebay("ls", node=node).text == "\\x00\\xff\\x5cA\n", "escapes: " + forebay("ls", node=node).text)
        expect(forebay("ls", "--hex", node=node).text == "00ff5c41\n", "hex listing")
        forebay("rm", "--hex", "00ff5c41", node=node)
        forebay("put", "--", "--help", node=node, stdin=b"v")
        expect(forebay("ls", node=node).text == "--help\n", "a key like an option")


def test_keys_in_json(home):
    """Text as text; what is no UTF-8 cannot be taken for another key."""
    texts = ["plain", "\u00e9\u20ac\U0001f600", 'quote"\\back', "tab\tdel\x7f"]
    raw = ["\udcff\udcfe", "\u00e9\udcc3", "\udcc0\udc80", "\udced\udca0\udc80", "\udce9"]  # bytes 80 to ff
    with Node(home) as node:
        rows = json.loads(forebay("exists", "--json", *texts, *raw, node=node, code=3).text)
        expect([row["key"] for row in rows] == texts + [None] * len(raw), str(rows))
        expect([os.fsdecode(bytes.fromhex(row["key_hex"])) for row in rows[len(texts):]] == raw, str(rows))
        expect(all("key_hex" not in row for row in rows[:len(texts)]), str(rows))
        row = json.loads(forebay("explain", "--json", raw[0], node=node, code=3).text)
        expect(row["key"] is None and row["key_hex"] == "fffe", str(row))
        row = json.loads(forebay("exists", "--json", "--hex", "6b", node=node, code=3).text)[0]
        expect(row["key"] is None and row["key_hex"] == "6b", str(row))


# ---- the end of a node -------------------------------------------------------------------------


def put_many(node, home, count, value_bytes=MIB, first=0):
    """Values "key-<i>", each of its own first bytes; with the pool backed, so that none must be written."""
    until = time.monotonic() + 20
    while " limits " not in node.log():
        expect(time.monotonic() < until, "the pool is not backed: " + node.log())
        time.sleep(0.01)
    words = []
    tail = os.urandom(value_bytes - 16)
    for i in range(first, first + count):
        words += ["key-%d" % i, write_file(home, "v%d" % i, b"%16d" % i + tail)]
    expect(forebay("put", *words, node=node).text.count(": OK") == count, "not all were stored")
    return tail


def readable(node, count, tail):
    """How many of the keys are there; some of them read, each has its own bytes."""
    rows = json.loads(forebay("exists", *["key-%d" % i for i in range(count)], "--json", node=node, code=None).text)
    found = [int(row["key"][4:]) for row in rows if row["result"] == "OK"]
    for i in found[::10] + found[-1:]:
        expect(forebay("get", "key-%d" % i, node=node).out == b"%16d" % i + tail, "key-%d: other bytes" % i)
    return len(found)


def size_of(text):
    number, unit = re.match(r"([0-9.]+)([KMGT]i)?B$", text).groups()
    return float(number) * 1024 ** ("KMGT".index(unit[0]) + 1 if unit else 0)


def drained(node):
    """What the drain said: dirty, persisted, left in memory only, in MiB."""
    return [size_of(node.field(event, name)) / MIB for event, name in
            (("drain_begun", "dirty"), ("drain_ended", "persisted"), ("drain_ended", "left_in_memory_only"))]


def test_drain_writes_what_is_dirty(home):
    with Node(home, "--persist=evict") as node:
        tail = put_many(node, home, 12)
        expect(node.metric("forebay_pool_dirty_bytes") == 12 * MIB, "all is dirty")
        expect(node.end() == 0, node.log())
        expect(drained(node) == [12, 12, 0], node.log())
        expect(" info drain_ended " in node.log(), "no warning")
    with Node(home) as node:
        expect(readable(node, 12, tail) == 12, "values are lost")


def test_drain_that_has_no_time(home):
    """A device that writes 128 MiB in 20 ms is still to be built."""
    slow = ["--io-fault=write:*:delayed"] if forebayd_has("--io-fault") else []
    with Node(home, "--persist=evict", "--pool=256MB", "--ssd-cap=1GB", "--device-rate=1TB", "--drain-ms=20",
              *slow) as node:
        tail = put_many(node, home, 128)
        begun = time.monotonic()
        expect(node.end() == 0, node.log())
        took = time.monotonic() - begun
        expect(took < 5, "it took %.1f s to end" % took)
        expect(int(node.field("drain_ended", "took_ms")) < 1000, node.log())
        dirty, persisted, left = drained(node)
        expect(dirty > 100 and left > 0 and abs(persisted + left - dirty) < 0.1, node.log())
        expect(" warn drain_ended " in node.log() and "its time was over" in node.log(), node.log())
    with Node(home, "--ssd-cap=1GB") as node:
        found = readable(node, 128, tail)
        expect(int(persisted) <= found < 128, "%s MiB were persisted, %d are there" % (persisted, found))


def test_repeated_signals_lose_nothing(home):
    with Node(home, "--persist=evict", "--pool=128MB", "--ssd-cap=512MB") as node:
        tail = put_many(node, home, 64)
        for after in (0, 0.001, 0.004, 0.02):
            time.sleep(after)
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGINT if after == 0.004 else signal.SIGTERM)
        expect(node.end() == 0, node.log())
        dirty, persisted, left = drained(node)
        expect(dirty > 50 and persisted == dirty and left == 0, node.log())
    with Node(home, "--ssd-cap=512MB") as node:
        expect(readable(node, 64, tail) == 64, "values are lost")


def test_later_signal_ends_at_once(home):
    """A device that is full for ever, so that a drain takes all its time."""
    with Node(home, "--persist=evict", "--io-fault=write:20+:ENOSPC") as node:
        put_many(node, home, 8)
        begun = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        node.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        expect(node.process.poll() is None, "a repeated signal ended it: " + node.log())
        expect(node.end(signal.SIGINT) == 0, node.log())
        expect(1.2 < time.monotonic() - begun < 6, "it ended at once")
        expect("second signal" in node.field("drain_ended", "how"), node.log())
        dirty, persisted, left = drained(node)
        expect(left > 0 and abs(persisted + left - dirty) < 0.1 and " warn drain_ended " in node.log(), node.log())


def test_limit_of_a_file_is_an_error_of_the_write(home):
    """The device's file may not grow further: the node lives, and says so."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40 * MIB, 40 * MIB))

    with Node(home, before=limit) as node:
        words = []
        for i in range(60):
            words += ["key-%d" % i, write_file(home, "v%d" % i, os.urandom(MIB))]
        forebay("put", *words, "--timeout=2s", node=node, code=None)
        expect(node.process.poll() is None, "it is dead: " + node.log())
        refused = node.metric("forebay_log_no_space_total") + node.metric("forebay_log_write_errors_total")
        expect(refused > 0 and os.path.getsize(node.ssd_path) <= 40 * MIB, "the limit was not met")
        has(forebay("status", node=node, model=None).text, "serving")


# ---- keys --------------------------------------------------------------------------------------


def test_life_of_a_key(home):
    with Node(home) as node:
        forebay("exists", "k", node=node, code=3)
        forebay("put", "k", node=node, stdin=b"value")
        has(forebay("wait", "k", node=node).text, "k: OK")
        result = forebay("exists", "k", "absent", node=node, code=3)
        has(result.text, "k: yes", "ssd", "absent: no")
        rows = json.loads(forebay("exists", "k", "absent", "--json", node=node, code=3).text)
        expect(rows[0]["result"] == "OK" and rows[0]["ssd"] and rows[1]["result"] == "MISS", str(rows))
        has(forebay("explain", "k", node=node).text, "present:", "bytes: 5")
        found = json.loads(forebay("explain", "k", "--json", node=node).text)
        expect(found["present"] and found["ssd"] and found["bytes"] == 5, str(found))
        has(forebay("rm", "k", node=node).text, "k: OK")
        has(forebay("rm", "k", node=node, code=3).err, "MISS")
        has(forebay("get", "k", node=node, code=3).err, "removed")
        has(forebay("explain", "k", node=node, code=3).text, "absent: removed")
        expect(json.loads(forebay("explain", "k", "--json", node=node, code=3).text)["reason"] == "removed", "json")
        has(forebay("explain", "never", node=node, code=3).text, "no_record", "reaches back")


def test_listing_while_values_are_persisted(home):
    """Each key once, whatever becomes of it meanwhile."""
    path = write_file(home, "v", b"v" * 80000)
    keys = ["key-%04d-" % i + "x" * 240 for i in range(3000)]
    words = [word for key in keys for word in (key, path)]
    env = {"FOREBAY_MODEL": "m", "PATH": os.environ["PATH"]}
    with Node(home, "--ssd-cap=512MB") as node:
        forebay("put", *words[:1000], node=node)
        with subprocess.Popen([os.path.join(folder, "forebay"), "put", "--quiet", "--socket", node.socket_path] +
                              words[1000:], env=env) as writer:
            rounds = 0
            while writer.poll() is None or rounds == 0:
                listed = forebay("ls", node=node).text.splitlines()
                rounds += 1
                expect(len(set(listed)) == len(listed), "%d are named twice" % (len(listed) - len(set(listed))))
                expect(set(keys[:500]) <= set(listed) <= set(keys), "%d are missed" % len(set(keys[:500]) - set(listed)))
            expect(writer.returncode == 0, "the put failed")
        expect(set(forebay("ls", node=node).text.splitlines()) == set(keys), "keys are missed")


def test_bump(home):
    with Node(home) as node:
        forebay("put", "k", node=node, stdin=b"v")
        has(forebay("bump", node=node).text, "epoch ")
        forebay("get", "k", node=node, code=3)
        expect(forebay("ls", node=node).text == "", "listed after a bump")
        has(forebay("explain", "k", node=node, code=3).text, "epoch_bumped")
        has(forebay("explain", "never", node=node, code=3).text, "no_record")


def test_status(home):
    with Node(home) as node:
        has(forebay("status", node=node, model=None).text, "state ", "serving", "pool.bytes", "ssd.state")
        status = json.loads(forebay("status", "--json", node=node, model=None).text)
        expect(status["state"] == "serving" and status["pool"]["bytes"] == 32 * MIB, str(status))


# ---- doctor ------------------------------------------------------------------------------------


def test_doctor(home):
    with Node(home) as node:
        result = forebay("doctor", node=node, model=None)
        has(result.text, "read them back through the device", "PASS")
        expect("BROKEN" not in result.text, result.text)
        expect(json.loads(forebay("doctor", "--json", node=node).text) == {"pass": True}, "json")
        expect(forebay("ls", "--model", "forebay-doctor", node=node).text == "", "it left something behind")
        expect(node.metric("forebay_get_hits_direct_total") >= 5, "nothing was read from the device")


def test_doctor_without_ssd(home):
    with Node(home, ssd=False) as node:
        result = forebay("doctor", node=node, code=5)
        has(result.text, "FAIL at: write them to SSD", "NOT_PERSISTED")
        has(forebay("doctor", "--dram-only", node=node).text, "PASS")
        verdict = json.loads(forebay("doctor", "--json", node=node, code=5).text)
        expect(verdict["link"] == "write them to SSD" and not verdict["pass"], str(verdict))


def test_doctor_on_a_broken_device(home):
    for script, link in (("read:8+:EIO", "read them back through the device"),
                         ("write:12+:EIO", "write them to SSD")):
        inner = os.path.join(home, script[:4])
        os.mkdir(inner)
        with Node(inner, "--io-fault=" + script) as node:
            has(forebay("doctor", "--timeout=3s", node=node, code=5).text, "FAIL at: " + link)


def forebayd_has(option):
    text = subprocess.run([daemon.forebayd, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return option in text


# ---- fsck --------------------------------------------------------------------------------------


def fill(node, home):
    """Values of several sizes, some removed, some replaced, all on SSD."""
    words = []
    for i in range(30):
        words += ["key-%d" % i, write_file(home, "v%d" % i, os.urandom(1000 + i * 30000))]
    forebay("put", *words, "--persist=through", node=node)
    forebay("rm", "key-3", "key-4", node=node)
    forebay("put", "key-5", words[1], "--upsert", "--persist=through", node=node)


def fsck(path, *options, code=0):
    return json.loads(forebay("fsck", path, "--json", *options, code=code).text)


def test_fsck_on_a_sound_file(home):
    with Node(home) as node:
        fill(node, home)
        has(forebay("fsck", home, "--data").text, "a node has this file open", "clean")
        expect(fsck(home)["in_use"], "the lock was not seen")
        node.end()
    found = fsck(node.ssd_path, "--data")
    expect(found["clean"] and not found["in_use"], str(found))
    expect(found["values"] >= 31 and found["parts_checked"] == found["values"], str(found))
    expect(found["tombstones"] >= 2 and found["superblocks_good"] == 2, str(found))
    has(forebay("fsck", home).text, "2 of 2 copies good", "clean")


def test_fsck_after_kill(home):
    with Node(home) as node:
        fill(node, home)
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
    found = fsck(home, "--data")
    expect(found["clean"] and found["values"] >= 31, str(found))


def blocks_with(path, magic):
    """The numbers of all blocks that begin with these letters."""
    content = read_file(path)
    return [at // BLOCK for at in range(0, len(content), BLOCK) if content[at:at + 4] == magic]


def damage(path, block, offset=100):
    with open(path, "r+b") as out:
        out.seek(block * BLOCK + offset)
        old = out.read(1)
        out.seek(block * BLOCK + offset)
        out.write(bytes([old[0] ^ 0x40]))


def test_fsck_finds_damage(home):
    with Node(home) as node:
        fill(node, home)
        node.end()
    sound = os.path.join(home, "sound")
    shutil.copyfile(node.ssd_path, sound)
    magics = set()
    for block in range(os.path.getsize(sound) // BLOCK):
        with open(sound, "rb") as content:
            content.seek(block * BLOCK)
            word = content.read(4)
        if re.match(rb"FB[A-Z][A-Z]$", word):
            magics.add(word)
    expect({b"FBSB", b"FBSG", b"FBDE"} <= magics, "magics found: %s" % magics)
    for magic in sorted(magics):
        shutil.copyfile(sound, node.ssd_path)
        damage(node.ssd_path, blocks_with(sound, magic)[0])
        found = fsck(home, code=5)
        expect(not found["clean"], "%s: %s" % (magic, found))
    # A byte of a value is found only if the bytes are asked for.
    shutil.copyfile(sound, node.ssd_path)
    damage(node.ssd_path, blocks_with(sound, b"FBDE")[0] + 1)
    expect(fsck(home)["clean"], "structures are whole")
    expect(fsck(home, "--data", code=5)["bad_data"] == 1, "the wrong byte was not found")
    # A header, both copies: the segment is lost.
    shutil.copyfile(sound, node.ssd_path)
    first = blocks_with(sound, b"FBSG")[0]
    damage(node.ssd_path, first)
    damage(node.ssd_path, first + 1)
    expect(fsck(home, code=5)["lost_segments"] == 1, "the lost segment was not found")


def test_fsck_of_something_else(home):
    path = write_file(home, "x", os.urandom(MIB))
    has(forebay("fsck", path, code=5).err, "no superblock is whole")
    path = write_file(home, "y", b"")
    has(forebay("fsck", path, code=5).err, "empty")
    has(forebay("fsck", os.path.join(home, "absent"), code=1).err, "No such file")
    has(forebay("fsck", code=2).err, "usage")


# ---- the first steps of README.md --------------------------------------------------------------


def readme_steps():
    """The commands of the section "Run it", in order, each with the lines that it prints."""
    with open(os.path.join(daemon.ROOT, "README.md"), encoding="utf-8") as readme:
        section = re.search(r"^## Run it$(.*?)^## ", readme.read(), re.M | re.S).group(1)
    steps = []
    for block in re.findall(r"^```\n(.*?)^```$", section, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif line != "...":
                steps[-1][1].append(line)
    return steps


def plain_words(line):
    """Without numbers and units of size, which differ from run to run."""
    return re.sub(r"[0-9][0-9.]*", "#", re.sub(r"([0-9]) ?[KMG]?i?B\b", r"\1", line))


def test_first_steps_of_readme(home):
    steps = readme_steps()
    expect(len(steps) > 12 and steps[0][0] == "make setup && make", "README.md: %s" % steps[:2])
    socket_path = os.path.join(home, "s")
    script = ["set -m", "cd " + home]
    for i, (command, _) in enumerate(steps[1:]):
        command = command.replace("$PWD/build/plain", folder)
        script.append("echo step %d >&2; echo step %d" % (i, i))
        script.append(command.replace("/tmp/fb.sock", socket_path))
        if command.endswith("&"):  # the next command needs the node, and its pool backed
            script.append("until forebay status --timeout 2s --socket %s 2> /dev/null | grep -q 'faulted *268435456'; "
                          "do [ $SECONDS -gt 30 ] && exit 9; sleep 0.02; done" % socket_path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    environment.update(FOREBAY_LISTEN="127.0.0.1:0", FOREBAY_ADMIN="127.0.0.1:0", FOREBAY_SSD_FLOOR="0")
    # The node is in a group of its own and outlives a shell that is killed, so that the shell watches the time.
    script.insert(0, "trap 'kill -9 $(jobs -p) 2> /dev/null' EXIT; SECONDS=0")
    done = subprocess.run(["bash", "-c", "\n".join(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=environment, timeout=100, check=False)
    said = done.stdout.decode(errors="replace").replace(socket_path, "/tmp/fb.sock")
    expect(done.returncode == 0, "exit code %d: %s" % (done.returncode, said))
    lines = [plain_words(line) for line in said.splitlines()]
    for command, wanted in steps[1:]:
        for line in wanted:
            start = plain_words(line.split("...")[0].rstrip())
            expect(any(one.startswith(start) for one in lines), "'%s' did not print '%s': %s" % (command, line, said))


# ---- an allocator that is not the usual one ----------------------------------------------------


def test_preloaded_allocator(home):
    found = glob.glob("/usr/lib/*/libjemalloc.so.2")
    if not found:
        without = Failed if os.environ.get("FB_TEST_ALL_PACKAGES") == "1" else Skipped
        raise without("there is no libjemalloc.so.2: install libjemalloc2")
    preload = {"LD_PRELOAD": found[0]}
    with Node(home, env=preload) as node:
        forebay("put", "k", node=node, stdin=b"v" * 100000, env=preload)
        expect(forebay("get", "k", node=node, env=preload).out == b"v" * 100000, "other bytes")
        has(forebay("doctor", node=node, env=preload).text, "PASS")


# ---- running -----------------------------------------------------------------------------------


def main():
    global folder
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    folder = os.path.abspath(sys.argv[1])
    daemon.forebayd = os.path.join(folder, "forebayd")
    has_hooks = forebayd_has("--io-fault")
    is_plain = os.path.basename(folder) == "plain"
    wanted = sys.argv[2:]
    base = os.environ.get("TEST_DIR", "/var/tmp")
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (wanted and not any(w in name for w in wanted)):
            continue
        if (name in PLAIN_ONLY and not is_plain) or (name in HOOKS_ONLY and not has_hooks):
            continue
        home = tempfile.mkdtemp(prefix="fb-", dir=base)
        begun = time.monotonic()
        try:
            test(home)
            passed += 1
            print("ok      %-45s %5.1f s" % (name[5:], time.monotonic() - begun), flush=True)
        except Skipped as why:
            print("SKIPPED %s: %s" % (name[5:], why), flush=True)
        except (Failed, OSError, ValueError, subprocess.SubprocessError) as error:
            failed += 1
            print("FAILED  %s: %s" % (name[5:], error), flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
