"""What tests of peers share: checks that are counted, and free ports of 127.0.0.1."""
import socket

passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    print(f"{'ok' if condition else 'FAILED'}: {name} {'' if condition else detail}", flush=True)


def report():
    """The exit code."""
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
