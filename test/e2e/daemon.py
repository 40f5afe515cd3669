#!/usr/bin/env python3
"""forebayd as an operator meets it: how it refuses to start, how it ends, what it prints.

    test/e2e/daemon.py FOREBAYD [NAME...]     run all tests, or those whose name contains one of these

Covers: settings that are wrong (exit code 2) and things that are not to be had (3), each with one line
that names the value, the limit and the cure; precedence of flags, environment and file; signals; the
socket that a killed node left; garbage, silence and crowds on the sockets; /metrics and /health; and
that docs/operations.md lists exactly the options, metrics, log events and exit codes that there are.

While others send garbage, are slow or silent, a good client puts and gets, and must not notice.

Cannot show: what happens to values (the tests of client, engine and crashes do). Frames are constants,
since the standard library has no XXH3. Deadlines of 30 s are not waited for.

The last line is `N passed, N failed`.
"""

import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
START_S = 20
MIB = 1 << 20

# Made by the encoder of src/proto: HELLO without features, PING with op 5, STATUS with op 6.
HELLO = bytes.fromhex(
    "fb01010028000000000000000000000000000000000000002d81d2d4bb36802d0000000000000000"
    "0700000000000000000000000000000001000000000000000400000074657374")
PING = bytes.fromhex("fb0104000000000005000000000000000100000000000000faaeede20ea1957c")
STATUS = bytes.fromhex("fb0121000000000006000000000000000100000000000000e54e3a09ff045ad8")
WELCOME, ERROR, PONG, STATUS_DONE = 2, 3, 5, 34

forebayd = ""


class Failed(Exception):
    """A test's expectation did not hold."""


class Skipped(Exception):
    """Something that a test needs is not here."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


# ---- a daemon ----------------------------------------------------------------------------------


class Daemon:
    """A forebayd as a child, with its log in a file."""

    def __init__(self, home, *arguments, env=None, before=None, default=True):
        self.home = home
        self.socket_path = os.path.join(home, "s")
        self.log_path = os.path.join(home, "log")
        ready, self.ready_fd = os.pipe()
        command = [forebayd]
        if default:
            command += ["--socket=" + self.socket_path, "--listen=127.0.0.1:0",
                        "--admin=127.0.0.1:0", "--pool=32MB"]
        command += list(arguments)
        if "FOREBAY_READY_FD" not in (env or {}):
            command += ["--ready-fd=%d" % self.ready_fd]
        # A leak check at the end would make a refusal look like a failure while running.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        environment.update(env or {})
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            pass_fds=[self.ready_fd], env=environment,
                                            preexec_fn=before)
        os.close(self.ready_fd)
        self.ready = ready

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_ready(self):
        """True once it serves, False if it ended first."""
        os.set_blocking(self.ready, False)
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                word = os.read(self.ready, 100)
                return word == b"ready\n"
            except BlockingIOError:
                time.sleep(0.005)
        raise Failed("not ready in %d s: %s" % (START_S, self.log()))

    def field(self, event, name):
        """A field of the newest line with this event."""
        found = re.findall(r"^\S+ \w+ %s .*?\b%s=(\"(?:[^\"\\]|\\.)*\"|\S+)" % (event, name),
                           self.log(), re.M)
        expect(found, "no line %s with %s in: %s" % (event, name, self.log()))
        return found[-1].strip('"')

    def tcp(self):
        host, port = self.field("listening", "tcp").rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=10)

    def unix(self):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(10)
        connection.connect(self.socket_path)
        return connection

    def page(self, name):
        url = "http://%s/%s" % (self.field("listening", "admin"), name)
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, series):
        match = re.search(r"^%s (\S+)$" % re.escape(series), self.page("metrics")[1], re.M)
        expect(match, "no series %s" % series)
        return float(match.group(1))

    def end(self, number=signal.SIGTERM, timeout=20):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("did not end in %d s: %s" % (timeout, self.log()))
        finally:
            self.close()

    def close(self):
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.close()


def operations(section=""):
    """docs/operations.md, or a section of it."""
    with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as file:
        text = file.read()
    return text.split("\n## %s\n" % section)[1].split("\n## ")[0] if section else text


def documented_lines(section, line):
    """The codes of the rows `line` | code that this line of a program matches; … stands for anything."""
    codes = set()
    for row, code in re.findall(r"^\| `([^`]+)` \| (\d) \|", operations(section), re.M):
        if re.fullmatch(re.escape(row).replace("…", ".*"), line):
            codes.add(int(code))
    return codes


def refuses(home, code, *words, cure, arguments=(), **how):
    """The daemon must end with this code and one line on stderr that has these words, the cure last."""
    with Daemon(home, *arguments, **how) as daemon:
        expect(not daemon.wait_ready(), "it started")
        got = daemon.process.wait(10)
        lines = [line for line in daemon.log().splitlines() if line.startswith("forebayd: ")]
        expect(got == code, "exit code %s, not %s: %s" % (got, code, daemon.log()))
        expect(len(lines) == 1, "not one line but %d: %s" % (len(lines), daemon.log()))
        for word in words:
            expect(word in lines[0], "'%s' is not in: %s" % (word, lines[0]))
        end = lines[0].find(";") if ";" in lines[0] else max(lines[0].rfind(": "), lines[0].rfind(" (--format"))
        expect(end > 0 and cure in lines[0][end:], "the cure '%s' is not the end of: %s" % (cure, lines[0]))
        expect(code in documented_lines("Exit codes", lines[0][len("forebayd: "):]),
               "docs/operations.md has no row for: " + lines[0])


def frames(connection, count=None):
    """The next frames, or all up to the end of the stream, as (type, op, payload)."""
    found = []
    data = b""
    while True:
        while len(data) >= 32 and len(data) >= 32 + struct.unpack_from("<I", data, 4)[0]:
            length = 32 + struct.unpack_from("<I", data, 4)[0]
            found.append((data[2], struct.unpack_from("<Q", data, 8)[0], data[32:length]))
            data = data[length:]
            if len(found) == count:
                return found
        piece = connection.recv(65536)
        if not piece:
            return found
        data += piece


class Options(ctypes.Structure):
    """struct fb_client_options of include/forebay/forebay.h."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("address", ctypes.c_char_p),
                ("ns", ctypes.c_char_p * 7), ("no_namespace", ctypes.c_bool), ("name", ctypes.c_char_p),
                ("use_shm", ctypes.c_int), ("connections_max", ctypes.c_uint32),
                ("connect_timeout_ms", ctypes.c_uint32), ("quota_dram_bytes", ctypes.c_uint64),
                ("quota_ssd_bytes", ctypes.c_uint64), ("commit_delay_ms", ctypes.c_uint32)]


def client_library():
    """libforebay.so of this build; the sanitizers' has none, and takes that of the plain build."""
    here = os.path.dirname(forebayd)
    for folder in (here, os.path.join(os.path.dirname(here), "plain")):
        path = os.path.join(folder, "libforebay.so")
        if os.path.exists(path):
            return ctypes.CDLL(path)
    raise Failed("there is no libforebay.so: make build/plain/libforebay.so")


class GoodClient(threading.Thread):
    """Puts and gets over one connection for as long as it is in its `with`; the slowest call is bounded."""

    SLOWEST_S = 1.5

    def __init__(self, daemon):
        super().__init__()
        self.library = client_library()
        options = Options(ctypes.sizeof(Options), b"tcp:" + daemon.field("listening", "tcp").encode())
        options.ns[0] = b"good client"
        self.handle = ctypes.c_void_p()
        why = ctypes.create_string_buffer(512)
        rc = self.library.fb_client_open(ctypes.byref(options), ctypes.byref(self.handle), why, ctypes.c_size_t(512))
        expect(rc == 0, why.value.decode())
        self.over = False
        self.calls = 0
        self.slowest = 0.0
        self.fault = ""

    def call(self, name, *arguments):
        begun = time.monotonic()
        result = getattr(self.library, name)(self.handle, *arguments)
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.calls += 1
        if result != 0:
            self.fault = self.fault or "%s ended as %d" % (name, result)

    def run(self):
        got = ctypes.create_string_buffer(50000)
        size = ctypes.c_size_t(len(got))
        while not self.over and not self.fault:
            key = b"%d" % self.calls
            value = (key + b" ").ljust(len(got), b"v")
            self.call("fb_put", key, ctypes.c_size_t(len(key)), value, size, ctypes.c_uint32(0), ctypes.c_uint32(0))
            self.call("fb_get", key, ctypes.c_size_t(len(key)), got, size, None, ctypes.c_uint32(0))
            if got.raw != value:
                self.fault = self.fault or "other bytes"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        until = time.monotonic() + 10
        while self.calls < 20 and not self.fault and time.monotonic() < until:
            time.sleep(0.01)
        self.over = True
        self.join()
        self.library.fb_client_close(self.handle)
        if kind is None:
            expect(not self.fault, "the good client: " + self.fault)
            expect(self.calls >= 20, "the good client came to %d calls only" % self.calls)
            expect(self.slowest < self.SLOWEST_S, "the good client waited %.1f s" % self.slowest)


def error_text(payload):
    return payload[8:].decode()


# ---- settings that are wrong -------------------------------------------------------------------


def test_unknown_option(home):
    refuses(home, 2, "--pol ", cure="--help", arguments=["--pol=1GB"])


def test_argument_that_is_no_option(home):
    refuses(home, 2, "'pool'", cure="--help", arguments=["pool"])


def test_bad_size(home):
    refuses(home, 2, "--pool", "64XB", cure="write say 64GB", arguments=["--pool=64XB"])


def test_size_out_of_range(home):
    refuses(home, 2, "--pool", "'1MB'", "from 16 MiB to 4 TiB", cure="write one", arguments=["--pool=1MB"])


def test_bad_number(home):
    refuses(home, 2, "--sessions", "'many'", "whole number from 1 to 1024", cure="write one", arguments=["--sessions=many"])


def test_number_out_of_range(home):
    refuses(home, 2, "--sessions", "'5000'", "1 to 1024", cure="write one", arguments=["--sessions=5000"])


def test_bad_mode(home):
    refuses(home, 2, "--persist", "'always'", "through", cure="write one of them", arguments=["--persist=always"])


def test_bad_level(home):
    refuses(home, 2, "--log-level", "'loud'", "debug, info", cure="write one of them", arguments=["--log-level=loud"])


def test_bad_io(home):
    refuses(home, 2, "--io", "'fast'", cure="choose auto, uring or posix", arguments=["--io=fast"])


def test_numbers_that_do_not_fit_each_other(home):
    refuses(home, 2, "--index-entries is 5", "from 64 to", cure="choose", arguments=["--index-entries=5"])
    refuses(home, 2, "--lease-ms is 5000", "--hold-ms 100", cure="the lease shorter",
            arguments=["--lease-ms=5000", "--hold-ms=100"])
    refuses(home, 2, "--ssd-cap is 100 TiB", "64 TiB", cure="say how much",
            arguments=["--ssd-path=" + home, "--ssd-cap=100TB"])
    refuses(home, 2, "--direct 'maybe'", "on or off", cure="write one", arguments=["--direct=maybe"])


def test_missing_value(home):
    done = subprocess.run([forebayd, "--sessions", "5", "--pool"], stderr=subprocess.PIPE, check=False)
    expect(done.returncode == 2 and b"--pool needs a value: --pool=SIZE" in done.stderr, done.stderr)


def test_not_loopback(home):
    refuses(home, 2, "--listen", "0.0.0.0:7700", cure="--insecure-bind", arguments=["--listen=0.0.0.0:7700"])
    refuses(home, 2, "--admin", "[::]:1", cure="--insecure-bind", arguments=["--admin=[::]:1"])


def test_bad_address(home):
    refuses(home, 2, "--listen", "'7700'", "host:port", cure="write say 127.0.0.1:7700", arguments=["--listen=7700"])
    refuses(home, 2, "--listen", "'nowhere.example:1'", "numeric", cure="write say 127", arguments=["--listen=nowhere.example:1"])
    refuses(home, 2, "--listen", "70000", "65535", cure="write say 127", arguments=["--listen=127.0.0.1:70000"])


def test_nobody_could_connect(home):
    refuses(home, 2, "--listen", "--socket", cure="name one", arguments=["--listen=none", "--socket=none"])


def test_cap_without_path(home):
    refuses(home, 2, "--ssd-cap is 1 GiB", "--ssd-path", cure="name the file or the device", arguments=["--ssd-cap=1GB"])


def test_path_without_cap(home):
    refuses(home, 2, "--ssd-cap is missing", home, "from 16 MiB to 64 TiB", cure="say how much",
            arguments=["--ssd-path=" + home])


def test_least_and_most_of_the_cap(home):
    """What the message says is what is enforced, and the value is the one that was given."""
    for text, said in (("1", "1 B"), (str(16 * MIB - 4096), "MiB"), ("100TB", "100 TiB")):
        refuses(home, 2, "--ssd-cap is ", said, "from 16 MiB to 64 TiB", cure="say how much",
                arguments=["--ssd-path=" + home, "--ssd-cap=" + text])
    with Daemon(home, *ssd(home, cap="16MB")) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(daemon.end() == 0, daemon.log())


def test_numbers_that_no_machine_holds(home):
    refuses(home, 2, "--pool", "too large", cure="from 16 MiB to 4 TiB", arguments=["--pool=99999999999999999999"])
    refuses(home, 2, "--sessions", "from 1 to 1024", cure="write one", arguments=["--sessions=99999999999999999999"])


def test_wrong_values_that_are_not_used(home):
    """A wrong value below a right one is told, and the node starts."""
    path = write(home, "sessions: many\n")
    env = {"FOREBAY_POOL": "abc", "FOREBAY_SESSIONS": "9"}
    with Daemon(home, "--config=" + path, env=env) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        lines = [line for line in daemon.log().splitlines() if line.startswith("forebayd: ")]
        expect(len(lines) == 2, lines)
        for word in ("FOREBAY_POOL", "'abc'", "passed over", "command line"):
            expect(word in lines[0], lines)
        for word in ("line 1 of " + path, "'many'", "passed over", "FOREBAY_SESSIONS"):
            expect(word in lines[1], lines)
        expect(daemon.end() == 0, daemon.log())


def test_help_and_version(_):
    for word in ("-h", "--help"):
        done = subprocess.run([forebayd, word], stdout=subprocess.PIPE, check=True)
        expect(done.stdout.startswith(b"usage: forebayd"), done.stdout)
    done = subprocess.run([forebayd, "--version"], stdout=subprocess.PIPE, check=True)
    expect(re.match(rb"forebayd \d+\.\d+\.\d+\n$", done.stdout), done.stdout)


def test_through_without_ssd(home):
    refuses(home, 2, "--persist is through", "--ssd-path", cure="choose off", arguments=["--persist=through"])


def test_socket_path_too_long(home):
    refuses(home, 2, "--socket", "201 characters", "107", cure="choose another", arguments=["--socket=/" + "x" * 200])


def bare(*arguments, env=None, before=None, **how):
    """A forebayd without the class above, so that no descriptor is handed over: its exit code and stderr."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    environment.update(env or {})
    done = subprocess.run([forebayd] + list(arguments), env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20, check=False,
                          preexec_fn=before, **how)
    return done.returncode, done.stderr.decode(errors="replace")


def refuses_bare(code, *words, arguments=(), **how):
    """As refuses(), without a descriptor that tells of readiness."""
    got, text = bare(*arguments, **how)
    expect(got == code and text.count("\n") == 1, "exit code %d: %s" % (got, text))
    expect(code in documented_lines("Exit codes", text[len("forebayd: "):-1]), "docs/operations.md has no row for: " + text)
    for word in words:
        expect(word in text, "'%s' is not in: %s" % (word, text))


def test_ready_fd_that_is_not_open(home):
    """No number at which the node would open something of its own; whatever source names it."""
    path = os.path.join(home, "ssd")
    for number in list(range(3, 24)) + [1000]:
        refuses_bare(2, "--ready-fd '%d'" % number, "open", "3>", arguments=["--ready-fd=%d" % number] + ssd(home))
    refuses_bare(2, "FOREBAY_READY_FD", "'7'", env={"FOREBAY_READY_FD": "7"})
    refuses_bare(2, "line 1", "'7'", arguments=["--config=" + write(home, "ready-fd: 7\n")])
    expect(not os.path.exists(path), "nothing was made")
    with open(os.devnull, "rb") as file:
        refuses_bare(2, "reading only", arguments=["--ready-fd=%d" % file.fileno()], pass_fds=[file.fileno()])


def test_closed_standard_descriptors(home):
    """With stderr closed the log must not go into what takes its number, nor the ready line close it."""
    def close_all():
        for fd in (0, 1, 2):
            os.close(fd)

    with Daemon(home, *ssd(home), before=close_all) as daemon:
        expect(daemon.wait_ready(), "it does not serve")
        links = [os.readlink("/proc/%d/fd/%d" % (daemon.process.pid, fd)) for fd in (0, 1, 2)]
        expect(links == ["/dev/null"] * 3, links)
        expect(daemon.end() == 0, "the end")
    with Daemon(home, *ssd(home), env={"FOREBAY_READY_FD": "2"}) as daemon:
        until = time.monotonic() + START_S
        while " limits " not in daemon.log() and time.monotonic() < until:
            time.sleep(0.01)
        expect(daemon.end() == 0 and " drain_ended " in daemon.log(), "the log goes on: " + daemon.log())


def write(home, text):
    path = os.path.join(home, "yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def test_file_errors(home):
    path = write(home, "pool: 64MB\nsize: 3\n")
    refuses(home, 2, path, "line 2", "'size'", cure="--help", arguments=["--config=" + path])
    write(home, "pool: [64MB]\n")
    refuses(home, 2, path, "line 1", "list", cure="write one", arguments=["--config=" + path])
    write(home, "pool: {a: 1}\n")
    refuses(home, 2, path, "line 1", "map", cure="write one", arguments=["--config=" + path])
    write(home, "drain-ms: 5\ndrain_ms: 6\n")
    refuses(home, 2, path, "line 2", "line 1", cure="leave one of them out", arguments=["--config=" + path])
    write(home, "drain-ms: soon\n")
    refuses(home, 2, "line 1 of " + path, "'soon'", "whole number from 1 to 600000", cure="write one", arguments=["--config=" + path])
    write(home, "pool: '64MB\n")
    refuses(home, 2, path, "not YAML", cure="write one", arguments=["--config=" + path])
    fifo = os.path.join(home, "fifo")
    os.mkfifo(fifo)
    for path in (fifo, home, "/dev/null"):
        refuses(home, 2, "--config", path, "no regular file", cure="name a file", arguments=["--config=" + path])
    refuses(home, 2, "--config", "/nowhere", "No such file", cure="name a file", arguments=["--config=/nowhere"])


def printed(arguments, env=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    environment.update(env or {})
    done = subprocess.run([forebayd, "--print-config"] + arguments, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    expect(done.returncode == 0, done.stderr.decode())
    found = {}
    for line in done.stdout.decode().splitlines():
        match = re.match(r"([a-z-]+): '(.*)' +# (.*)$", line)
        expect(match, "not a line of settings: " + line)
        found[match.group(1)] = (match.group(2), match.group(3))
    return found, done.stdout.decode()


def test_precedence(home):
    path = write(home, "# a comment\nsessions: 5\ndrain_ms: 6\nlease-ms: 7\n")
    env = {"FOREBAY_SESSIONS": "15", "FOREBAY_DRAIN_MS": "16", "FOREBAY_CONFIG": path}
    found, text = printed(["--sessions=25"], env)
    expect(found["sessions"] == ("25", "command line"), "a flag goes first: %s" % (found["sessions"],))
    expect(found["drain-ms"] == ("16", "FOREBAY_DRAIN_MS"), "then the environment")
    expect(found["lease-ms"] == ("7", "line 4 of " + path), "then the file")
    expect(found["hold-ms"] == ("0", "default"), "then the default")
    # What is printed can be read back, and gives the same.
    again, _ = printed(["--config=" + write(home, text)])
    expect({k: v[0] for k, v in again.items()} == {k: v[0] for k, v in found.items()}, "read back")


def test_unknown_variables_are_named(home):
    with Daemon(home, env={"FOREBAY_POOOL": "1GB", "FOREBAY_ADDRESS": "unix:/x"}) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect("FOREBAY_POOOL" in daemon.log(), "the typo is named")
        expect("FOREBAY_ADDRESS" not in daemon.log(), "the clients' variable is not")


# ---- what is not to be had ---------------------------------------------------------------------


def test_port_in_use(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        refuses(home, 3, "--listen", address, "in use", cure="another port", arguments=["--listen=" + address])
        refuses(home, 3, "--admin", address, "in use", cure="another port", arguments=["--admin=" + address])


def test_socket_in_use(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        second = os.path.join(home, "second")
        os.mkdir(second)
        refuses(second, 3, "--socket", daemon.socket_path, "another process", cure="choose another path",
                arguments=["--socket=" + daemon.socket_path])
        expect(daemon.process.poll() is None, "the first one is well")


def test_path_that_is_no_socket(home):
    path = os.path.join(home, "file")
    with open(path, "w", encoding="utf-8") as file:
        file.write("precious")
    folder = os.path.join(home, "folder")
    os.mkdir(folder)
    for there in (path, folder):
        refuses(home, 3, "--socket", there, cure="what is there is no socket: choose another path",
                arguments=["--socket=" + there])
        expect(os.path.exists(there), "it was not deleted")


def ssd(home, name="ssd", cap="64MB"):
    return ["--ssd-path=" + os.path.join(home, name), "--ssd-cap=" + cap, "--ssd-floor=0"]


def test_second_process_on_the_same_file(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        second = os.path.join(home, "second")
        os.mkdir(second)
        refuses(second, 3, os.path.join(home, "ssd"), "process %d has it locked" % daemon.process.pid,
                cure="stop that process", arguments=ssd(home))
        expect(daemon.end() == 0, daemon.log())


def test_directory_gets_a_file(home):
    with Daemon(home, "--ssd-path=" + home, "--ssd-cap=64MB", "--ssd-floor=0") as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(os.path.exists(os.path.join(home, "forebay.ssd")), "forebay.ssd")
        expect(daemon.end() == 0, daemon.log())
    with Daemon(home, "--ssd-path=" + home + "/", "--ssd-cap=64MB", "--ssd-floor=0") as daemon:
        expect(daemon.wait_ready() and daemon.field("disk", "path") == home + "/forebay.ssd", daemon.log())
        expect(daemon.end() == 0, daemon.log())
    none = os.path.join(home, "none")
    refuses(home, 3, none + "/", "no such directory", cure="make it", arguments=["--ssd-path=%s/" % none, "--ssd-cap=64MB"])
    expect(not os.path.exists(none), "nothing was made")


def test_path_that_cannot_be_made(home):
    refuses(home, 3, "/nowhere/ssd", "No such file", cure="existing directory", arguments=["--ssd-path=/nowhere/ssd", "--ssd-cap=64MB"])


def test_path_that_cannot_be_written(home):
    refuses(home, 3, "/proc/version", cure="name a path on", arguments=["--ssd-path=/proc/version", "--ssd-cap=64MB"])


def test_tmpfs(home):
    if not os.path.isdir("/dev/shm"):
        raise Skipped("there is no /dev/shm")
    path = "/dev/shm/forebay-test-%d" % os.getpid()
    try:
        refuses(home, 3, path, "tmpfs", cure="name a path on a disk", arguments=["--ssd-path=" + path, "--ssd-cap=64MB", "--ssd-floor=0"])
    finally:
        if os.path.exists(path):
            os.unlink(path)


def test_foreign_content_is_not_overwritten(home):
    path = os.path.join(home, "ssd")
    with open(path, "wb") as file:
        file.write(b"precious " * 100000)
    with open(path, "rb") as file:
        before = file.read()
    refuses(home, 3, path, "not a log of forebay", cure="--format", arguments=ssd(home))
    with open(path, "rb") as file:
        expect(file.read() == before, "the file was changed")


def test_another_format_version(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(daemon.end() == 0, daemon.log())
    path = os.path.join(home, "ssd")
    with open(path, "r+b") as file:
        for copy in (0, 16 * 4096):  # docs/format.md, sections 2 and 3
            file.seek(copy)
            block = bytearray(file.read(4096))
            block[4:6] = b"\x09\x00"
            seed = struct.unpack_from("<Q", block, 0)[0]
            struct.pack_into("<Q", block, 8, xxh3(bytes(block[16:]), seed))
            file.seek(copy)
            file.write(block)
    with open(path, "rb") as file:
        before = file.read()
    refuses(home, 3, path, "version 9", "version 1", cure="--format", arguments=ssd(home))
    with open(path, "rb") as file:
        expect(file.read() == before, "the file was changed")


def test_another_node(home):
    with Daemon(home, "--node-id=5", *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(daemon.end() == 0, daemon.log())
    refuses(home, 3, "node 5", "node 6", cure="--format", arguments=ssd(home) + ["--node-id=6"])


def xxh3(data, seed):
    """XXH3-64, by the library that forebayd uses too."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return function(data, len(data), seed)


def forbid_uring():
    """In the child: io_uring_setup fails with EPERM, as in a container with the usual profile."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
                    ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    setup = 425  # io_uring_setup, the same number on all architectures
    code = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, setup),
                        Filter(0x06, 0, 0, 0x00050000 | 1), Filter(0x06, 0, 0, 0x7fff0000))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(Program(4, code)), 0, 0) != 0:
        os._exit(99)


def test_uring_forbidden(home):
    refuses(home, 3, "not permitted", cure="--io=posix", arguments=["--io=uring"], before=forbid_uring)
    with Daemon(home, before=forbid_uring) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect("posix" in daemon.field("io", "text"), "it says which: " + daemon.log())
        expect(daemon.end() == 0, daemon.log())


# ---- signals -----------------------------------------------------------------------------------


def test_sigterm_drains(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        connection = daemon.tcp()
        connection.sendall(HELLO)
        expect(frames(connection, 1)[0][0] == WELCOME, "WELCOME")
        expect(daemon.end() == 0, daemon.log())
        last = frames(connection)
        expect([f[0] for f in last] == [ERROR], "the client was told: %s" % last)
        expect("goes down" in error_text(last[0][2]), error_text(last[0][2]))
        expect(daemon.field("drain_ended", "left_in_memory_only") == "0B", daemon.log())
        expect(not os.path.exists(daemon.socket_path), "the socket's file is gone")
        expect(daemon.log().splitlines()[-1].split()[2] == "ended", "the last line: " + daemon.log())
        expect(int(daemon.field("ended", "took_ms")) >= int(daemon.field("drain_ended", "took_ms")), daemon.log())


def test_sigint_ends_too(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(daemon.end(signal.SIGINT) == 0, daemon.log())


def test_sighup_does_nothing(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        daemon.process.send_signal(signal.SIGHUP)
        expect(daemon.page("health")[0] == 200, "it serves")
        expect(daemon.end() == 0, daemon.log())


def test_killed_node_leaves_a_socket_that_is_taken_over(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        daemon.process.kill()
        daemon.process.wait()
        expect(os.path.exists(daemon.socket_path), "a socket is left")
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        daemon.unix().close()
        expect(daemon.end() == 0, daemon.log())


# ---- bad clients -------------------------------------------------------------------------------


def well(daemon):
    """Others are served."""
    connection = daemon.tcp()
    connection.sendall(HELLO + PING)
    expect(frames(connection, 1)[0][0] == WELCOME, "WELCOME")
    connection.close()


def send_garbage(daemon):
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(500), os.urandom(3 * MIB),
                    b"\xfb" * 100, HELLO[:-1] + b"x", HELLO + b"\x00" * 32, HELLO + HELLO,
                    PING, HELLO + PING[:4] + b"\xff\xff\xff\xff" + PING[8:]):
        for connect in (daemon.tcp, daemon.unix):
            connection = connect()
            try:
                connection.sendall(garbage)
            except OSError:
                pass  # it was cut while we wrote
            try:
                got = frames(connection)
                expect(got and got[-1][0] == ERROR, "ERROR after %r: %s" % (garbage[:20], got))
                expect(len([f for f in got if f[0] == ERROR]) == 1, "one ERROR")
            except ConnectionResetError:
                expect(len(garbage) > MIB, "only a flood may be reset")
            connection.close()


def test_garbage_gets_one_error(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        with GoodClient(daemon):
            send_garbage(daemon)
        expect(daemon.metric("forebay_protocol_breaches_total") >= 16, "breaches are counted")
        expect(daemon.end() == 0, daemon.log())


def test_requests_in_pieces(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        connection = daemon.unix()
        for byte in HELLO + STATUS:
            connection.sendall(bytes([byte]))
        got = frames(connection, 2)
        expect([f[0] for f in got] == [WELCOME, STATUS_DONE], got)
        text = got[1][2][8:].decode()
        for word in ('"state":"serving"', '"pool":{', '"ssd":{'):
            expect(word in text, word + " in " + text)
        connection.close()
        expect(daemon.end() == 0, daemon.log())


def test_silent_and_half_open_connections(home):
    with Daemon(home, "--sessions=64") as daemon:
        expect(daemon.wait_ready(), daemon.log())
        with GoodClient(daemon):
            begun = time.monotonic()
            silent = [daemon.tcp() for _ in range(20)]
            half = [daemon.unix() for _ in range(20)]
            for connection in half:
                connection.sendall(HELLO[:40])
            well(daemon)
            for connection in silent + half:
                got = frames(connection)
                expect([f[0] for f in got] == [ERROR] and "HELLO" in error_text(got[0][2]), got)
            took = time.monotonic() - begun
        expect(4.5 < took < 9, "they were cut after 5 s, not %.1f" % took)
        expect(daemon.metric('forebay_connections_cut_total{why="hello"}') == 40, "counted")
        expect(daemon.end() == 0, daemon.log())


def test_more_connections_than_sessions(home):
    with Daemon(home, "--sessions=4") as daemon:
        expect(daemon.wait_ready(), daemon.log())
        kept = []
        for _ in range(4):
            connection = daemon.tcp()
            connection.sendall(HELLO)
            expect(frames(connection, 1)[0][0] == WELCOME, "WELCOME")
            kept.append(connection)
        got = frames(daemon.tcp())
        expect([f[0] for f in got] == [ERROR] and "--sessions" in error_text(got[0][2]), got)
        kept.pop().close()
        until = time.monotonic() + 5
        while time.monotonic() < until and daemon.metric("forebay_connections") == 4:
            time.sleep(0.02)
        well(daemon)
        expect(daemon.end() == 0, daemon.log())


def test_flood_of_bad_connections(home):
    """Each would have a line in the log; it has 200 at once and 20 a second, and counts the others."""
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        begun = time.monotonic()
        with GoodClient(daemon):
            for _ in range(1000):
                connection = daemon.unix()
                connection.sendall(b"x" * 40)
                expect([f[0] for f in frames(connection)] == [ERROR], "ERROR")
                connection.close()
        took = time.monotonic() - begun
        lines = daemon.log().count(" session_refused ")
        expect(lines <= 200 + 20 * (took + 1), "%d lines in %.1f s" % (lines, took))
        suppressed = daemon.metric("forebay_log_lines_suppressed_total")
        expect(suppressed > 0 and lines + suppressed >= 1000, "%d lines, %d suppressed" % (lines, suppressed))
        time.sleep(0.2)  # there is room for a line again
        expect(daemon.end() == 0, daemon.log())
        told = sum(int(n) for n in re.findall(r" suppressed=(\d+)", daemon.log()))
        expect(told == suppressed, "%d of %d lines are told of" % (told, suppressed))


def test_client_that_does_not_read(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        deaf = daemon.unix()
        deaf.sendall(HELLO)
        deaf.settimeout(0.5)
        with GoodClient(daemon):
            try:
                for _ in range(20000):
                    deaf.sendall(PING * 10)
            except socket.timeout:
                pass
        well(daemon)
        # The answers are there once it reads.
        deaf.settimeout(10)
        expect(frames(deaf, 1)[0][0] == WELCOME, "WELCOME")
        deaf.close()
        well(daemon)
        expect(daemon.end() == 0, daemon.log())


def test_half_open_requests_leave_health_alone(home):
    """Requests that never end hold no place that /health needs, and are cut soon."""
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        host, port = daemon.field("listening", "admin").rsplit(":", 1)
        half = []
        for _ in range(64):
            half.append(socket.create_connection((host, int(port)), timeout=10))
            half[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        begun = time.monotonic()
        expect(daemon.page("health")[0] == 200 and daemon.page("metrics")[0] == 200, "they answer")
        took = time.monotonic() - begun
        expect(took < 1, "/health took %.1f s" % took)
        for connection in half:
            connection.recv(1000)  # what is said to it, or the end
            connection.close()
        expect(time.monotonic() - begun < 6, "they were cut after %.1f s" % (time.monotonic() - begun))
        expect(daemon.end() == 0, daemon.log())


def test_other_methods(home):
    with Daemon(home) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        url = "http://%s/health" % daemon.field("listening", "admin")
        for method, body in (("POST", b"x" * 100000), ("PUT", b""), ("DELETE", None), ("OPTIONS", None)):
            try:
                urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=10)
                raise Failed(method + " was taken")
            except urllib.error.HTTPError as error:
                expect(error.code == 405 and error.headers["Allow"] == "GET, HEAD", "%s: %s" % (method, error))
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as page:
            expect(page.status == 200 and page.read() == b"", "HEAD")
        expect(daemon.end() == 0, daemon.log())


# ---- limits of the process ---------------------------------------------------------------------


def limited(what, soft, hard=None):
    return lambda: resource.setrlimit(what, (soft, soft if hard is None else hard))


def test_descriptors(home):
    """The soft limit is raised to the hard one; what is still too few is said with value, limit and cure."""
    with Daemon(home, "--sessions=100", before=limited(resource.RLIMIT_NOFILE, 50, 400)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(" descriptors " not in daemon.log(), daemon.log())
        with open("/proc/%d/limits" % daemon.process.pid, encoding="ascii") as limits:
            expect(re.search(r"^Max open files +400 +400 ", limits.read(), re.M), "it was not raised")
        connections = [daemon.unix() for _ in range(100)]
        for connection in connections:
            connection.sendall(HELLO)
            expect(frames(connection, 1)[0][0] == WELCOME, "WELCOME")
        expect(daemon.end() == 0, daemon.log())
    with Daemon(home, "--sessions=100", before=limited(resource.RLIMIT_NOFILE, 200)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        expect(daemon.field("descriptors", "limit") == "200", daemon.log())
        expect(daemon.field("descriptors", "wanted") == "264", daemon.log())
        expect("--sessions" in daemon.field("descriptors", "cure"), daemon.log())
        expect(daemon.end() == 0, daemon.log())


def test_pool_above_the_limit_of_a_file(home):
    refuses(home, 3, "--pool 32 MiB", "too large", cure="ulimit -f", before=limited(resource.RLIMIT_FSIZE, 16 * MIB))


# ---- figures -----------------------------------------------------------------------------------


def test_health(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        code, page = daemon.page("health")
        expect(code == 200 and '"ok":true' in page and '"tier":"on"' in page, page)
        age = int(re.search(r'"turn_age_ms":(\d+)', page).group(1))
        expect(age < 2000, "it turns")
        expect(daemon.page("other")[0] == 404, "404")
        # A node that does not turn is not well, and says so by itself.
        daemon.process.send_signal(signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGCONT)
        expect(daemon.end() == 0, daemon.log())


SCALE = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def sizes_in(line):
    """The sizes of a line of the log, by name, in bytes."""
    return {name: float(number) * SCALE[unit] for name, number, unit in
            re.findall(r" (\w+)=([0-9.]+)(B|KiB|MiB|GiB)(?= |$)", line)}


def test_parts_of_memory_add_up(home):
    for arguments in ([], ssd(home)):
        with Daemon(home, *arguments) as daemon:
            expect(daemon.wait_ready(), daemon.log())
            line = re.search(r"^\S+ info memory .*$", daemon.log(), re.M).group(0)
            parts = sizes_in(line)
            total = parts.pop("sum_at_most")
            del parts["limit"]
            expect(abs(sum(parts.values()) - total) < 0.1 * MIB, line)
            expect(daemon.end() == 0, daemon.log())


def series_of(page):
    names = set()
    for line in page.splitlines():
        if line.startswith("#"):
            match = re.match(r"# (HELP|TYPE) (forebay_[a-z_]+) \S", line)
            expect(match, "a bad comment: " + line)
            continue
        match = re.match(r'(forebay_[a-z_]+)(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.]+$', line)
        expect(match, "a bad line: " + line)
        names.add(match.group(1))
    return names


def test_metrics_are_well_formed(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        code, page = daemon.page("metrics")
        expect(code == 200, code)
        names = series_of(page)
        expect(len(names) > 90, len(names))
        helps = re.findall(r"^# HELP (\S+)", page, re.M)
        expect(len(helps) == len(set(helps)) and set(helps) == names, "one HELP each")
        seen = re.findall(r"^(forebay_\S+) ", page, re.M)
        expect(len(seen) == len(set(seen)), "each series once")
        expect(daemon.end() == 0, daemon.log())


def test_idle_costs_little(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        time.sleep(1.5)  # the pool is backed by now

        def ticks():
            with open("/proc/%d/stat" % daemon.process.pid, encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        before = ticks()
        time.sleep(3)
        used = (ticks() - before) / os.sysconf("SC_CLK_TCK") / 3
        expect(used <= 0.02, "idle takes %.1f %% of a core" % (100 * used))
        expect(daemon.end() == 0, daemon.log())


# ---- the documents -----------------------------------------------------------------------------


def compare(what, there, documented):
    expect(there == documented, "%s: not in docs/operations.md: %s; only there: %s" %
           (what, sorted(there - documented), sorted(documented - there)))


def test_options_are_documented(_):
    """The same names, defaults and words in --help and in the document."""
    text = subprocess.run([forebayd, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()
    said = {}
    for name, words in re.findall(r"^  --([a-z-]+)(?:=\S+)?[ \n]((?:.|\n(?= {4}))*)", text, re.M):
        said[name] = re.sub(r"\s+", " ", words).strip()
    rows = {name: (default.strip(" `"), words) for name, default, words in
            re.findall(r"^\| `--([a-z-]+)(?:=.*?)?` \| ([^|]*) \| (.*) \|$", operations("Settings"), re.M)}
    documented = set(rows)
    if "bug" not in said:
        documented -= {"bug", "io-fault"}  # of test builds
    compare("options", set(said), documented)
    for name, words in said.items():
        default, row = rows[name]
        expected = "%s (default %s)" % (row, default) if default else row
        expect(words == expected, "--%s: the help says '%s', the document '%s'" % (name, words, expected))


def test_exit_codes_are_documented(_):
    with open(os.path.join(ROOT, "src/server/daemon.h"), encoding="utf-8") as file:
        there = set(re.findall(r"FB_SERVER_EXIT_\w+ = (\d)", file.read()))
    compare("exit codes", there, set(re.findall(r"^\| (\d) \|", operations("Exit codes"), re.M)))


def test_metrics_are_documented(home):
    with Daemon(home, *ssd(home)) as daemon:
        expect(daemon.wait_ready(), daemon.log())
        there = series_of(daemon.page("metrics")[1])
        expect(daemon.end() == 0, daemon.log())
    compare("metrics", there, set(re.findall(r"^\| `(forebay_[a-z_]+)", operations(), re.M)))


def test_log_events_are_documented(_):
    there = set()
    for folder in ("node", "server"):
        path = os.path.join(ROOT, "src", folder)
        for name in os.listdir(path):
            if name.endswith(".c"):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    text = re.sub(r"\s+", " ", file.read())
                for call in re.findall(r"fb_(?:logger_begin|node_say)\(([^;]*?)\);", text):
                    found = re.findall(r'"([a-z_]+)"', call)
                    there.update(found if "?" in call else found[:1])
    compare("log events", there, set(re.findall(r"^\| `([a-z_]+)` \| (?:info|warn|error)", operations(), re.M)))


# ---- running -----------------------------------------------------------------------------------


def main():
    global forebayd
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    forebayd = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:]
    base = os.environ.get("TEST_DIR", "/var/tmp")
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (wanted and not any(w in name for w in wanted)):
            continue
        home = tempfile.mkdtemp(prefix="fb-", dir=base)
        begun = time.monotonic()
        try:
            test(home)
            passed += 1
            print("ok      %-55s %5.1f s" % (name[5:], time.monotonic() - begun), flush=True)
        except Skipped as why:
            print("SKIPPED %s: %s" % (name[5:], why), flush=True)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print("FAILED  %s: %s" % (name[5:], error), flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
