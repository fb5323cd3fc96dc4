#!/usr/bin/env python3
"""The daemon under a service manager: usage: service_peer.py PAGODA_BINARY

Speaks systemd's notification protocol as the manager: what a unit of Type=notify with a watchdog hears from start to stop.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from checks import check, free_port, report

ROOT = pathlib.Path(__file__).resolve().parents[2]
WATCHDOG_SECONDS = 3.0  # long enough for a machine under load


class Manager:
    """The socket of a service manager, and the service that it started."""

    def __init__(self, binary, folder, *flags):
        name = f"{folder}/notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.http = f"127.0.0.1:{free_port()}"
        # The watchdog's pid has to be the service's, which only the service itself knows: exec keeps it.
        self.process = subprocess.Popen(
            ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", binary, "serve", str(ROOT / "deploy/models/fable-7m"),
             "--device=sim", f"--grpc-address=127.0.0.1:{free_port()}", f"--http-address={self.http}",
             "--metrics-address=127.0.0.1:0", "--log-level=error", *flags],
            env={**os.environ, "NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))})

    def next(self, seconds=20):
        """The next message, as a dictionary; None when there is none in time."""
        self.socket.settimeout(seconds)
        try:
            return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))
        except socket.timeout:
            return None

    def drain(self):
        """Drops what has come."""
        while self.next(0.01):
            pass

    def longest_silence(self, seconds):
        """The longest time without a watchdog message in the next `seconds`."""
        last = begin = time.time()
        longest = 0.0
        while (left := begin + seconds - time.time()) > 0:
            if (self.next(left) or {}).get("WATCHDOG") == "1":
                longest, last = max(longest, time.time() - last), time.time()
        return max(longest, time.time() - last)

    def workers(self):
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)


def stream(manager, num_tokens):
    body = {"prompt": "Once", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    return urllib.request.urlopen(urllib.request.Request(
        f"http://{manager.http}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=60)


def check_start(manager):
    first = manager.next()
    check("while it loads it says so and asks for time", first and "loading" in first.get("STATUS", "")
          and int(first.get("EXTEND_TIMEOUT_USEC", 0)) > 60e6, first)
    message = first
    while message and "READY" not in message:
        message = manager.next()
    check("READY=1 says what is served", message and message["READY"] == "1" and "serving fable-7m" in message["STATUS"], message)
    with stream(manager, 1) as reply:
        check("what is ready answers", reply.status == 200)


def check_watchdog(manager):
    def check_alive(name):
        silence = manager.longest_silence(2 * WATCHDOG_SECONDS)
        check(name, silence < WATCHDOG_SECONDS, f"{silence:.2f} s of silence")

    manager.drain()
    check_alive("an idle daemon beats in every interval of the watchdog")
    with stream(manager, 1900) as reply:
        check_alive("a busy one too")
        os.kill(manager.workers()[0], signal.SIGKILL)
        check_alive("one whose worker is replaced too")
        check("and its stream goes on", b"data:" in reply.read(20))
    manager.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    manager.drain()
    silence = manager.longest_silence(1.5 * WATCHDOG_SECONDS)
    check("one that stands still does not", silence > WATCHDOG_SECONDS, silence)
    manager.process.send_signal(signal.SIGCONT)
    check_alive("one that goes on does")


def check_stop(manager):
    reply = stream(manager, 400)
    reply.readline()
    manager.stop()
    message = manager.next()
    while message and "STOPPING" not in message:
        message = manager.next()
    check("STOPPING=1 asks for the time of a drain", message and "draining" in message["STATUS"]
          and int(message.get("EXTEND_TIMEOUT_USEC", 0)) > 30e6, message)
    check("the stream that runs finishes", reply.read().endswith(b"data: [DONE]\n\n"))
    check("exit code 0", manager.process.wait(60) == 0, manager.process.returncode)


def main():
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        manager = Manager(binary, folder)
        try:
            check_start(manager)
            check_watchdog(manager)
            check_stop(manager)
        finally:
            manager.process.kill()
    return report()


if __name__ == "__main__":
    sys.exit(main())
