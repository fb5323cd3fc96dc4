"""A daemon for a peer test: started on free ports of 127.0.0.1, ended with SIGTERM."""
import pathlib
import subprocess
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from checks import check, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "deploy/models/fable-7m"


class Daemon:
    def __init__(self, binary, *flags, model=MODEL):
        self.address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [binary, "serve", str(model), f"--grpc-address={self.address}", "--metrics-address=127.0.0.1:0", *flags],
            stderr=subprocess.DEVNULL)

    def __enter__(self):
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for _ in range(600):
                try:
                    reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return self
                except grpc.RpcError:
                    pass
                time.sleep(0.05)
        raise SystemExit("the daemon does not serve")

    def __exit__(self, *_):
        self.process.terminate()
        check("SIGTERM ends the daemon with exit code 0", self.process.wait(60) == 0, self.process.returncode)
