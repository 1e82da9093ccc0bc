#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Live metrics of real runs: every sink has the numbers of metrics.jsonl, and a sink that fails stops no run.

Arguments: the program and mpirun. Event files are read here without the program's code, and by TensorBoard if it is
installed.
"""
import csv
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PROGRAM, MPIRUN = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
RUN_FILE = """
[model]
family = "gpt2"
layers = 2
heads = 2
width = 32
context = 16
[data]
train = "text.txt"
[train]
steps = {steps}
micro_batch_size = 2
global_batch_size = 4
log_interval = 1
eval_interval = 5
eval_batches = 1
[device]
kind = "cpu"
threads = 1
"""


def crc32c(data):
    """Bit by bit, by the polynomial 0x1EDC6F41 in its reflected form."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(data):
    """The payloads of a TFRecord file with checked sums."""
    mask = lambda crc: ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    while data:
        length, of_length = struct.unpack("<QI", data[:12])
        payload, (of_payload,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        assert of_length == mask(crc32c(data[:8])) and of_payload == mask(crc32c(payload)), "a checksum differs"
        yield payload
        data = data[16 + length:]


def fields(data):
    """[(number, value)] of a protobuf message: integers, bytes of fixed size, or bytes."""
    def varint():
        nonlocal data
        value = shift = 0
        while True:
            byte, data = data[0], data[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while data:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, data[:size]
            data = data[size:]


def events(folder):
    """Of all files: {tag: {step: value}}, and the steps from which the run began again."""
    scalars, restarts = {}, []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        payloads = list(records(path.read_bytes()))
        assert dict(fields(payloads[0]))[3] == b"brain.Event:2"
        for payload in payloads[1:]:
            event = dict(fields(payload))
            assert abs(struct.unpack("<d", event[1])[0] - time.time()) < 3600
            if 7 in event:
                assert dict(fields(event[7])) == {1: 1}
                restarts.append(event[2])
                for steps in scalars.values():
                    for step in [step for step in steps if step >= event[2]]:
                        del steps[step]
            for number, value in fields(event.get(5, b"")):
                assert number == 1
                one = dict(fields(value))
                scalars.setdefault(one[1].decode(), {})[event[2]] = struct.unpack("<f", one[2])[0]
    return scalars, restarts


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LiveMetrics(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="slipstream_live_")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "text.txt").write_text("the wind carries every sail before a quiet harbour of grain\n" * 300)

    def command(self, steps, *sets, ranks=1, flags=()):
        (self.folder / "run.toml").write_text(RUN_FILE.format(steps=steps))
        command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks > 1 else []
        command += [str(PROGRAM), "train", "run.toml", *flags]
        for setting in ("output.dir=run", *sets):
            command += ["--set", setting]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return {"args": command, "cwd": self.folder, "env": environment, "text": True}

    def train(self, *arguments, code=0, **options):
        done = subprocess.run(**self.command(*arguments, **options), capture_output=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def lines(self):
        return [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]

    def check_csv(self):
        with open(self.folder / "run/metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        lines = self.lines()
        self.assertEqual([row["step"] for row in rows], [str(line["step"]) for line in lines])
        for row, line in zip(rows, lines):
            for key, value in line.items():
                if key in ("params_hash", "exposed_by"):
                    continue
                self.assertIn(key, row)
                self.assertEqual(float(row[key]) if row[key] else None, value, key)
            for key, text in row.items():
                self.assertTrue(text == "" or key in line or key == "bubble_ms" and float(text) == 0, key)

    def check_events(self, restarts):
        scalars, begun = events(self.folder / "run/tensorboard")
        self.assertEqual(begun, restarts)
        lines = self.lines()
        self.assertEqual(sorted(scalars["loss"]), [line["step"] for line in lines])
        for line in lines:
            for key in ("loss", "val_loss", "lr", "step_ms", "tokens_per_s", "hidden"):
                if line.get(key) is None:
                    self.assertNotIn(line["step"], scalars.get(key, {}))
                else:
                    nearest = struct.unpack("<f", struct.pack("<f", line[key]))[0]
                    self.assertEqual(scalars[key][line["step"]], nearest)

    def test_files_have_the_numbers_of_metrics_jsonl_also_after_a_resume(self):
        sets = ["output.csv=true", "output.tensorboard=true", "checkpoint.interval=4"]
        self.train(8, *sets, ranks=2)
        self.check_csv()
        self.check_events([])
        # Steps after the checkpoint that a run continues are measured again.
        for name in ("final", "step-00000008"):
            subprocess.run(["rm", "-r", self.folder / "run/checkpoints" / name], check=True)
        time.sleep(1.1)  # names of event files have seconds
        self.train(12, *sets, ranks=2, flags=["--resume"])
        self.check_csv()
        self.check_events([5])
        self.assertEqual(len(self.lines()), 12)
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            print("SKIPPED event files in TensorBoard: it is not installed.")
        else:
            board = EventAccumulator(str(self.folder / "run/tensorboard"))
            board.Reload()
            seen = {event.step: event.value for event in board.Scalars("loss")}
            self.assertEqual(sorted(seen), list(range(1, 13)))
            for line in self.lines():
                self.assertAlmostEqual(seen[line["step"]], line["loss"], places=5)
        # A new run moves the files away.
        self.train(2, *sets)
        self.check_csv()
        self.check_events([])
        self.assertTrue((self.folder / "run.old-1/metrics.csv").exists())

    def test_the_endpoint_answers_while_the_run_trains(self):
        port = free_port()
        process = subprocess.Popen(**self.command(100000, f"output.prometheus_port={port}"), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        seen, deadline = {}, time.monotonic() + 60
        while seen.get("slipstream_step", 0) < 3 and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                    text = answer.read().decode()
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
                continue
            seen = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
            kinds = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
            self.assertEqual(kinds, set(seen))
        self.assertGreaterEqual(seen["slipstream_step"], 3)
        line = next(line for line in self.lines() if line["step"] == seen["slipstream_step"])
        for key in ("loss", "lr", "step_ms", "tokens_per_s", "compute_ms"):
            self.assertEqual(seen[f"slipstream_{key}"], line[key])
        self.assertLess(abs(seen["slipstream_step_time_seconds"] - time.time()), 60)
        for path, method, code in (("/", "GET", 404), ("/metrics", "POST", 405)):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=5)
            self.assertEqual(refused.exception.code, code)
            refused.exception.close()
        # Clients that are silent or send rubbish stop neither the endpoint nor the run.
        silent = socket.create_connection(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port)) as rude:
            rude.sendall(b"\x00" * 20000)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            self.assertIn(b"slipstream_loss", answer.read())
        silent.close()
        # The endpoint is on the loopback interface only.
        listening = [line.split()[1] for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
                     if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")]
        self.assertEqual(listening, [f"0100007F:{port:04X}"])

    def test_a_sink_that_fails_is_reported_once_and_the_run_goes_on(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/metrics.csv").symlink_to("/dev/full")
        (self.folder / "run/tensorboard").write_text("a file")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            text = self.train(8, "output.csv=true", "output.tensorboard=true", f"output.prometheus_port={port}")
        self.assertEqual(len(self.lines()), 8)
        for sentence in ("metrics.csv cannot be written: No space left on device. Training goes on without it.",
                         "run/tensorboard has no event file",
                         f"[output] port {port} of 127.0.0.1 cannot be used: Address already in use. "
                         "Set output.prometheus_port to a free port. Training goes on without the endpoint."):
            self.assertEqual(text.count(sentence), 1, text)

    def test_off_by_default(self):
        self.train(2)
        self.assertFalse((self.folder / "run/metrics.csv").exists())
        self.assertFalse((self.folder / "run/tensorboard").exists())


if __name__ == "__main__":
    if not MPIRUN:
        print("SKIPPED live metrics: mpirun is not installed.")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
