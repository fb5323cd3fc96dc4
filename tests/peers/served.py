"""A daemon for the length of a with statement. Needs grpcio and the stubs of inference.proto alone."""
import pathlib
import subprocess
import tempfile
import time

import grpc
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 60


class Served:
    """Its address, once the model is loaded."""

    def __init__(self, pagoda, model, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"unix:{self.folder.name}/socket"
        self.command = [pagoda, "serve", str(model), f"--grpc-address={self.address}", "--metrics-address=127.0.0.1:0", *flags]

    def __enter__(self):
        self.daemon = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_SECONDS
        with grpc.insecure_channel(self.address) as channel:
            while True:
                try:
                    rpc.InferenceServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=1)
                    return self.address
                except grpc.RpcError:
                    if time.monotonic() > end or self.daemon.poll() is not None:
                        self.__exit__()
                        raise SystemExit("the daemon does not serve: " + " ".join(self.command)) from None
                    time.sleep(0.05)

    def __exit__(self, *_):
        self.daemon.terminate()
        self.daemon.wait()
        self.folder.cleanup()
