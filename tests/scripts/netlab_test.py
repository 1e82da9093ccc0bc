#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/netlab.sh: rates, oversubscription and failures of links by timed TCP streams, and nothing left behind.

Skips without root or without namespaces and tbf in the kernel.
"""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "netlab.sh"
STATE = pathlib.Path("/run/slipstream-netlab")
NET = "10.202.0"
SINK = """
import socket, sys, time
server = socket.create_server(("", 5001))
print("ready", flush=True)
peer, _ = server.accept()
begin, total = None, 0
while data := peer.recv(1 << 20):
    now = time.monotonic()
    if begin is None or now < begin + 0.3:  # the bucket of the shaper is full at the start
        begin = begin or now
        continue
    total += len(data)
    end = now
print(total * 8e-6 / (end - begin - 0.3))
"""
SOURCE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001), timeout=5) as peer:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        peer.sendall(bytes(1 << 16))
"""


def netlab(*words, code=0):
    done = subprocess.run([SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def left():
    """What a network leaves on the machine."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [name for name in spaces if name.startswith("node")] + [str(path) for path in (STATE, *pathlib.Path("/etc/netns").glob("node*"))
                                                                   if path.exists()]


def megabits(pairs, seconds=1.5):
    """Rates of TCP streams that run at the same time, from the first to the second node of each pair."""
    sinks = [subprocess.Popen([SCRIPT, "exec", f"node{to}", sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
             for _, to in pairs]
    for sink in sinks:
        assert sink.stdout.readline() == "ready\n"
    sources = [subprocess.Popen([SCRIPT, "exec", f"node{by}", sys.executable, "-c", SOURCE, f"{NET}.{to + 1}", str(seconds)],
                                stderr=subprocess.DEVNULL)
               for by, to in pairs]
    codes = [source.wait(30) for source in sources]
    if any(codes):
        for sink in sinks:
            sink.kill()
            sink.communicate()
    assert codes == [0] * len(pairs), codes
    return [float(sink.communicate(timeout=30)[0]) for sink in sinks]


class Networks(unittest.TestCase):
    def setUp(self):
        self.addCleanup(lambda: self.assertEqual(left(), []))
        self.addCleanup(lambda: netlab("down"))

    def test_rates_changes_and_failures(self):
        netlab("up", "--nodes", 3, "--rate", "200mbit")
        self.assertEqual(netlab("exec", "node1", "hostname"), "node1\n")
        self.assertEqual((STATE / "hosts").read_text(), "".join(f"node{i} slots=1\n" for i in range(3)))
        self.assertIn("a network is up", netlab("up", code=2))
        for rate in megabits([(0, 1), (1, 2)]):  # headers take 5 %
            self.assertTrue(60 < rate < 205, rate)
        netlab("rate", "40mbit", "node0")
        slow, fast = megabits([(0, 1), (1, 2)])
        self.assertTrue(15 < slow < 42 and fast > 60, (slow, fast))
        netlab("down", "node2")
        with self.assertRaises(AssertionError):
            megabits([(0, 2)], seconds=0.1)

    def test_halves_share_an_oversubscribed_link(self):
        netlab("up", "--nodes", 4, "--rate", "200mbit", "--oversubscribe", 4)
        inside = megabits([(0, 1), (2, 3)])
        across = megabits([(0, 2), (1, 3)])
        self.assertTrue(all(rate > 60 for rate in inside), inside)
        self.assertTrue(30 < sum(across) < 105, across)  # 2 x 200 / 4

    def test_nothing_is_left_after_kill_or_the_time(self):
        process = subprocess.Popen([SCRIPT, "with", "--nodes", "2", "--rate", "1gbit", "--", "sleep", "100"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (STATE / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertNotEqual(left(), [])
        process.send_signal(signal.SIGKILL)
        process.wait()
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(left(), [])

    def test_refusals(self):
        for words, sentence in [(["up", "--nodes", 1], "--nodes 1 must be from 2 to 16."),
                                (["up", "--nodes", 17], "--nodes 17 must be from 2 to 16."),
                                (["up", "--rate", "fast"], "--rate fast must be a rate such as 1gbit"),
                                (["up", "--loss", "much"], "--loss much must be a share"),
                                (["up", "--oversubscribe", "0.5"], "must be a number from 1."),
                                (["up", "--speed", "1"], "unknown option '--speed'"),
                                (["run", "true"], "no network is up"), (["with", "true"], "with needs a command after --"),
                                (["rate", "1gbit"], "no network is up"), (["upp"], "usage:")]:
            self.assertIn(sentence, netlab(*words, code=2))
        if subprocess.run("ip netns add netlab_probe && ip -n netlab_probe link set lo up && tc -n netlab_probe qdisc add dev lo root "
                          "netem delay 1ms; code=$?; ip netns del netlab_probe; exit $code", shell=True, capture_output=True).returncode:
            for option in (("--delay", "1ms"), ("--loss", "0.1%")):
                self.assertIn("this kernel has no netem, which --delay and --loss need. Leave them out", netlab("up", *option, code=7))
        else:
            netlab("up", "--delay", "1ms", "--loss", "0.1%")


if __name__ == "__main__":
    if os.geteuid() != 0 or left():
        print("SKIPPED networks on one machine: not root, or a network is up.")
        sys.exit(77)
    probe = subprocess.run([SCRIPT, "up"], capture_output=True, text=True)
    subprocess.run([SCRIPT, "down"], capture_output=True)
    if probe.returncode:
        print(f"SKIPPED networks on one machine: {probe.stderr.strip().splitlines()[-1]}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
