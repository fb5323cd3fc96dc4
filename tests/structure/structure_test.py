#!/usr/bin/env python3
"""Keeps the tree's promises: the arrows between rooms, no source outside a CMake list, small files, a suite for each class of faults.

usage: structure_test.py layering|orphans|size|security ROOT
"""
import pathlib
import re
import sys

# Who may include whom. A room's own headers and kernels/base are always allowed; design: the arrows never go up.
ALLOWED = {
    "kernels/base": set(),
    "kernels": {"kernels/base"},
    "parallel": {"kernels/base", "proto/internal"},
    "engine": {"kernels", "kernels/base", "parallel", "proto/internal"},
    "daemon": {"kernels", "kernels/base", "parallel", "engine", "proto/internal", "proto/public"},
}
# Libraries that only some rooms may see.
FORBIDDEN_LIBRARIES = {
    "kernels": ("grpc", "google/protobuf", "nccl"),
    "parallel": ("grpc",),
    "engine": ("grpc",),
    "daemon": ("cuda", "cublas", "nccl"),
}
# Files that may be longer than the aim, with the reason.
LONG_FILES = {
    "daemon/config/settings_table.cc": "the one list of what can be set, in the order of --help",
    "kernels/cuda/attention/prefill_wgmma_kernel.cuh": "one kernel; its phases share registers and shared memory",
}
LIMITS = {".h": 300, ".cc": 500, ".cuh": 600, ".cu": 600}
TEST_LIMIT = 600


def room_of_path(path):
    parts = path.split("/")
    if parts[:2] == ["kernels", "base"]:
        return "kernels/base"
    return parts[0] if parts[0] in ALLOWED else None


def room_of_include(include):
    if include.startswith("pagoda/internal/"):
        return "proto/internal"
    if include.startswith(("pagoda/v1/", "google/rpc/", "smg/", "vllm/")):
        return "proto/public"
    return room_of_path(include)


def sources(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and "build" not in path.parts:
                yield path


def layering(root):
    errors = []
    pattern = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)
    for path in sources(root, ["kernels", "parallel", "engine", "daemon"], {".h", ".cc", ".cu", ".cuh"}):
        name = path.relative_to(root).as_posix()
        room = room_of_path(name)
        for include in pattern.findall(path.read_text()):
            target = room_of_include(include)
            if target and target != room and target not in ALLOWED[room]:
                errors.append(f"{name}: {room} must not include {include} ({target})")
            for library in FORBIDDEN_LIBRARIES.get(room, ()):
                # CUDA and NCCL live in the module's own folders.
                if include.startswith(library) and "/cuda" not in name and "nccl" not in name:
                    errors.append(f"{name}: {room} must not include {include}")
    return errors


def orphans(root):
    lists = "\n".join(
        p.read_text()
        for p in [*root.rglob("CMakeLists.txt"), *root.rglob("*.cmake")]
        if "build" not in p.relative_to(root).parts
    )
    def named(stem):
        return re.search(rf"\b{re.escape(stem)}\b", lists) or (
            stem.endswith("_test") and re.search(rf"\b{re.escape(stem[:-5])}\b", lists))

    errors = []
    for path in sources(root, ["kernels", "parallel", "engine", "daemon", "tests"], {".cc", ".cu"}):
        # Lists name files whole, or by stem and by pattern in a loop.
        pattern = re.sub(r"_(bf16|fp16)_[0-9]+$", "_${", path.stem)
        if path.name not in lists and not named(path.stem) and pattern not in lists:
            errors.append(f"{path.relative_to(root)}: in no CMake list, so never built")
    return errors


def size(root):
    errors = []
    for path in sources(root, ["kernels", "parallel", "engine", "daemon", "tests"], set(LIMITS)):
        name = path.relative_to(root).as_posix()
        # x_inl.h holds kernels that several instruction sets include, as .cuh does for devices.
        suffix = ".cuh" if name.endswith("_inl.h") else path.suffix
        limit = TEST_LIMIT if name.startswith("tests/") else LIMITS[suffix]
        lines = path.read_text().count("\n")
        if lines > limit and name not in LONG_FILES:
            errors.append(f"{name}: {lines} lines, more than {limit}: split it by noun or list it with a reason")
    return errors


def security(root):
    tests = set()
    for path in sources(root, ["tests"], {".cc"}):
        tests.update(".".join(pair) for pair in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M))
    fuzzers = {path.stem for path in (root / "tests/fuzz").rglob("*_fuzz.cc")}
    errors, classes = [], {}
    for line in (root / "tests/structure/security_classes.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("S"):
            head, line = line.split(":", 1)
            classes[head.split()[0]] = []
        classes[head.split()[0]] += line.split()
    for number in range(1, 21):
        if not classes.get(f"S{number}"):
            errors.append(f"S{number} has no suite")
    for name, suites in classes.items():
        errors += [f"{name}: {suite} does not exist" for suite in suites if suite not in tests | fuzzers]
    return errors


def main():
    check, root = sys.argv[1], pathlib.Path(sys.argv[2])
    errors = {"layering": layering, "orphans": orphans, "size": size, "security": security}[check](root)
    print("\n".join(errors) if errors else f"{check}: clean")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
