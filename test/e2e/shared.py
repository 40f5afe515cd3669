#!/usr/bin/env python3
"""The shared library as a program outside of this tree meets it.

    test/e2e/shared.py FOLDER     FOLDER has forebayd and libforebay.so

Covers: make install; the C example of README.md, compiled against what was installed and run against a
forebayd, by pkg-config; the library loaded by itself, as a binding of another language does; that it
exports the functions of its headers and nothing else, and needs nothing of the node.

Cannot show: what the calls do (client_test.c).

The last line is `N passed, N failed`.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import daemon  # noqa: E402
from daemon import Daemon, Failed, expect  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEADERS = "include/forebay"
# What every program has, and the one library that the client is allowed to need.
NEEDED = {"libxxhash.so.0", "libc.so.6", "libpthread.so.0"}
ADDRESS = "unix:/tmp/fb.sock"
folder = ""

AROUND = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
%s
int main(void)
{
    char bytes[5000], buffer[5000];
    size_t length = sizeof(bytes);
    memset(bytes, 7, sizeof(bytes));
    memset(buffer, 0, sizeof(buffer));
%s
    if (result != 0 || found != length || memcmp(bytes, buffer, length) != 0)
        return 1;
    puts("the same bytes");
    return 0;
}
"""


def run(command, **how):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False, **how)
    text = done.stdout.decode(errors="replace")
    expect(done.returncode == 0, "%s: exit code %d: %s" % (" ".join(command), done.returncode, text))
    return text


def install(home):
    run(["make", "--no-print-directory", "install", "BUILD=" + os.path.basename(folder), "PREFIX=/usr",
         "DESTDIR=" + home], cwd=ROOT, env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"})
    return os.path.join(home, "usr")


def example():
    """The C example of README.md: its include lines, and its statements."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        block = re.search(r"```c\n(.*?)```", readme.read(), re.S)
    expect(block is not None, "README.md has no C example")
    lines = block.group(1).splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    return AROUND % ("\n".join(includes), "\n".join(line for line in lines if line not in includes))


def test_the_example_of_readme_runs(home):
    """Compiled against what make install puts down."""
    there = install(home)
    node = Daemon(home)
    expect(node.wait_ready(), "the node does not start: " + node.log())
    text = example()
    expect(ADDRESS in text, "the example does not name " + ADDRESS)
    source, program = os.path.join(home, "example.c"), os.path.join(home, "example")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text.replace(ADDRESS, "unix:" + node.socket_path))
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(there, "lib/pkgconfig"),
                       PKG_CONFIG_SYSROOT_DIR=home)
    flags = run(["pkg-config", "--cflags", "--libs", "forebay"], env=environment).split()
    # pkg-config leaves out what it takes for the system's own folders.
    flags = ["-I" + there + "/include", "-L" + there + "/lib"] + flags
    try:
        run(["gcc", "-Wall", "-Werror", "-o", program, source] + flags)
        said = run([program], env=dict(os.environ, LD_LIBRARY_PATH=there + "/lib"))
        expect("the same bytes" in said, "it said: " + said)
    finally:
        node.end()
        node.close()


def test_it_loads_by_itself(_home):
    """Nothing is left to be resolved by whoever loads it."""
    library = ctypes.CDLL(os.path.join(folder, "libforebay.so"), mode=os.RTLD_NOW)
    library.fb_result_name.restype = ctypes.c_char_p
    expect(library.fb_result_name(0) == b"OK", "fb_result_name(0) is %r" % library.fb_result_name(0))


def test_it_exports_its_header(_home):
    """The functions that the headers declare, no more and no less."""
    text = run(["nm", "-D", "--defined-only", os.path.join(folder, "libforebay.so")])
    exported = set(re.findall(r" T (\w+)", text))
    code = ""
    for name in os.listdir(os.path.join(ROOT, HEADERS)):
        with open(os.path.join(ROOT, HEADERS, name), encoding="utf-8") as header:
            code += re.sub(r"/\*.*?\*/", "", header.read(), flags=re.S)
    code = re.sub(r"static inline[^;{]*\{.*?\n\}", "", code, flags=re.S)
    declared = set(re.findall(r"\b(fb_\w+)\s*\([^;{]*\)[^;{]*;", code)) - {"fb_list_fn"}
    expect(declared == exported, "only declared: %s; only exported: %s" %
           (sorted(declared - exported), sorted(exported - declared)))


def test_it_needs_nothing_of_the_node(_home):
    """No library of the daemon is pulled into an engine's process."""
    text = run(["readelf", "-d", os.path.join(folder, "libforebay.so")])
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    expect(needed <= NEEDED, "it needs " + " ".join(sorted(needed - NEEDED)))


def main():
    global folder
    if len(sys.argv) != 2:
        sys.exit("usage: test/e2e/shared.py FOLDER")
    folder = os.path.abspath(sys.argv[1])
    daemon.forebayd = os.path.join(folder, "forebayd")
    passed = failed = 0
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory(prefix="fbs-") as home:
            try:
                test(home)
                passed += 1
            except Failed as failure:
                failed += 1
                print("%s: %s" % (name, failure))
    print("%d passed, %d failed" % (passed, failed))
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
