#!/usr/bin/env python3
"""The clients that README.md shows, as they stand there but for the daemon's addresses. Those that ask for the same print the same.

usage: readme_peer.py PAGODA_BINARY
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from checks import check, free_port, report
from daemon_process import ROOT, Daemon

PROTO = ROOT / "proto"
# Debian 12's grpc for Go encodes the messages of protoc-gen-go before 1.4; a module's newer one needs nothing of the kind.
DEBIAN_CODEC = """package main

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

type codec struct{}

func (codec) Name() string                                 { return "proto" }
func (codec) Marshal(v interface{}) ([]byte, error)         { return proto.Marshal(v.(proto.Message)) }
func (codec) Unmarshal(data []byte, v interface{}) error    { return proto.Unmarshal(data, v.(proto.Message)) }
func init()                                                { encoding.RegisterCodec(codec{}) }
"""


class Examples:
    """The fenced blocks of README.md, with the daemon's addresses."""

    def __init__(self, grpc_address, http_address):
        text = (ROOT / "README.md").read_text().replace("127.0.0.1:8001", grpc_address).replace("127.0.0.1:8000", http_address)
        self.blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    def of(self, language, word):
        found = [block for tag, block in self.blocks if tag == language and word in block]
        if len(found) != 1:
            raise SystemExit(f"README.md has {len(found)} examples of \"{language}\" with \"{word}\"; expected 1")
        return found[0]


def run(command, folder, **env):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        check(f"{command[0]} succeeds", False, done.stderr.decode()[-2000:])
        raise SystemExit(report())
    return done.stdout.decode()


def python_text(example, folder):
    run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", "--python_out=.", "--grpc_python_out=.",
         str(PROTO / "pagoda/v1/inference.proto")], folder)
    (folder / "client.py").write_text(example)
    return run([sys.executable, "client.py"], folder)


def cpp_text(example, folder):
    run(["protoc", f"-I{PROTO}", "--cpp_out=.", "--grpc_out=.", f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}",
         "pagoda/v1/inference.proto"], folder)
    (folder / "client.cc").write_text(example)
    libraries = run(["pkg-config", "--cflags", "--libs", "grpc++", "protobuf"], folder).split()
    run(["g++", "-std=c++17", "-I.", "client.cc", "pagoda/v1/inference.pb.cc", "pagoda/v1/inference.grpc.pb.cc", "-o", "client",
         *libraries], folder)
    return run(["./client"], folder)


def go_text(example, folder):
    client = folder / "src/client"
    client.mkdir(parents=True)
    (client / "main.go").write_text(example)
    (client / "codec.go").write_text(DEBIAN_CODEC)
    commands = [line.removeprefix("// ") for line in example.splitlines() if line.startswith("// ")]
    run(["bash", "-ec", "\n".join(commands).replace("-Iproto", f"-I{PROTO}")], client)
    run(["go", "build", "-o", folder / "client", "."], client, GO111MODULE="off", GOPATH=f"{folder}:/usr/share/gocode",
        GOCACHE=str(ROOT / "build/peers/go-cache"))
    return run([folder / "client"], folder)


def main():
    pagoda = str(pathlib.Path(sys.argv[1]).resolve())
    http = f"127.0.0.1:{free_port()}"
    with Daemon(pagoda, f"--http-address={http}") as daemon, tempfile.TemporaryDirectory() as temporary:
        examples = Examples(daemon.address, http)
        folders = iter(pathlib.Path(temporary, str(i)) for i in range(10))

        def folder():
            new = next(folders)
            new.mkdir()
            return new

        want = run([pagoda, "generate", "Once upon a time", "--max-tokens=80", "--temperature=0.8", "--seed=7",
                    f"--address={daemon.address}"], temporary).strip()
        check("pagoda generate tells a story", len(want) > 100, want)
        for language, text in {
                "Python": python_text(examples.of("python", "import grpc"), folder()),
                "C++": cpp_text(examples.of("cpp", "grpcpp"), folder()),
                "Go": go_text(examples.of("go", "package main"), folder()),
        }.items():
            check(f"{language}: the text of pagoda generate", text.strip() == want, (text, want))
        openai = folder() / "client.py"
        openai.write_text(examples.of("python", "from openai"))
        text = run([sys.executable, str(openai)], temporary)
        check("Python with openai: a text", len(text) > 100, text)
        text = run(["bash", "-ec", examples.of("", "grpcurl -plaintext")], temporary)
        check("grpcurl: events from started to finished", '"started"' in text and '"delta"' in text and '"finished"' in text, text)
        reply = json.loads(run(["bash", "-ec", examples.of("", "curl http")], temporary))
        check("curl: 40 tokens", reply["usage"]["completion_tokens"] == 40, reply)
    return report()


if __name__ == "__main__":
    sys.exit(main())
