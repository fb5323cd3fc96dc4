#!/usr/bin/env python3
"""The page at / in headless Chromium: a completion and a chat that stream, tokens with their probabilities, cancel, an error,
keys, live figures; nothing is loaded from elsewhere.

usage: page_peer.py PAGODA_BINARY
"""
import pathlib
import re
import shutil
import sys
import tempfile
import time

from playwright.sync_api import expect, sync_playwright

from checks import check, free_port, report
from daemon_process import Daemon, ROOT

KEY = "sk-page"
SHOTS = ROOT / "build/page"


def number(page, name):
    match = re.match(r"[\d.]+", page.locator("#" + name).inner_text())
    return float(match[0]) if match else -1


def until(page, condition, timeout_s=60):
    """The page's policy forbids what playwright's wait_for_function does."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        page.wait_for_timeout(20)
    return True


def wait_end(page):
    expect(page.locator("#send")).to_be_enabled(timeout=60000)


def completion(page):
    page.fill("#prompt", "Once upon a time")
    page.fill("#max_tokens", "40")
    page.fill("#temperature", "0")
    page.click("#send")
    wait_end(page)
    output = page.locator("#output").inner_text()
    check("the completion follows its prompt", output.startswith("Once upon a time") and len(output) > 60, output)
    check("the figures tell the tokens", "40 tokens" in page.locator("#figures").inner_text())
    tokens = page.locator("#output .token").all()
    values = [float(each.get_attribute("data-probability") or -1) for each in tokens]
    check("every token has its probability", len(values) == 40 and all(0 < value <= 1 for value in values), values)
    tokens[5].hover()
    tip = page.locator("#tip").inner_text()
    check("a token tells what else it could have been", len(tip.splitlines()) >= 5 and "%" in tip, tip)
    page.screenshot(path=SHOTS / "completion.png")


def chat(page):
    page.click("#tab-chat")
    for text in ("Tell me a story", "And then?"):
        page.fill("#prompt", text)
        page.click("#send")
        wait_end(page)
    output = page.locator("#output").inner_text()
    check("a chat of two turns", output.count("assistant") >= 2 and "And then?" in output, output)
    check("a chat without an error", page.locator("#error").inner_text() == "", page.locator("#error").inner_text())
    page.screenshot(path=SHOTS / "chat.png")


def cancel(page):
    """The simulated device gives 50 tokens a second."""
    page.click("#tab-completion")
    page.fill("#prompt", "Once")
    page.fill("#max_tokens", "1500")
    page.click("#send")
    shown = until(page, lambda: page.locator("#output .token").count() >= 20)
    check("text is shown while it streams", shown and page.locator("#cancel").is_enabled())
    check("live figures: one runs", until(page, lambda: number(page, "running") == 1))
    check("live figures: tokens a second", until(page, lambda: 25 < number(page, "rate") < 75), number(page, "rate"))
    check("live figures: KV cache", number(page, "kv") > 0)
    check("live figures: time to first token", until(page, lambda: number(page, "ttft") > 0, 5))
    page.screenshot(path=SHOTS / "live.png")
    page.click("#cancel")
    wait_end(page)
    check("cancel ends it", "cancelled" in page.locator("#figures").inner_text())
    check("and the daemon stops", until(page, lambda: number(page, "running") == 0))


def error(page):
    page.fill("#prompt", "Once")
    page.fill("#top_p", "7")
    page.click("#send")
    wait_end(page)
    text = page.locator("#error").inner_text()
    check("an error names the field", text.startswith("400") and "top_p" in text, text)
    page.screenshot(path=SHOTS / "error.png")
    page.fill("#top_p", "1")
    page.fill("#prompt", "Once")
    page.fill("#max_tokens", "4")
    page.click("#send")
    wait_end(page)
    check("and the next request is served", page.locator("#error").inner_text() == "")


def keys(page):
    check("without a key the page says so", "401" in page.locator("#state").inner_text())
    page.fill("#key", KEY)
    page.dispatch_event("#key", "change")
    expect(page.locator("#state")).to_have_text("ready", timeout=10000)
    check("with a key it shows the model", page.locator("#model").inner_text() == "fable-7m")


def main():
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        key_file = pathlib.Path(folder, "keys")
        key_file.write_text(KEY + "\n")
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for device, parts in (("cpu", (keys, completion, chat, error)), ("sim", (keys, cancel))):
            port = free_port()
            with Daemon(binary, f"--http-address=127.0.0.1:{port}", f"--api-key-file={key_file}", f"--device={device}",
                        "--kv-cache-memory=128MiB", *(["--sim-base-us=20000"] if device == "sim" else [])):
                page = browser.new_page(viewport={"width": 1200, "height": 800})
                faults, elsewhere = [], []
                page.on("pageerror", lambda fault: faults.append(str(fault)))
                page.on("request", lambda request: elsewhere.append(request.url)
                        if not request.url.startswith((f"http://127.0.0.1:{port}/", "data:")) else None)
                page.goto(f"http://127.0.0.1:{port}/")
                expect(page.locator("#state")).not_to_have_text("connecting", timeout=10000)
                for part in parts:
                    part(page)
                check(f"no script fails ({device})", not faults, faults)
                check(f"nothing is asked of others ({device})", not elsewhere, elsewhere)
                page.close()
        browser.close()
    return report()


if __name__ == "__main__":
    sys.exit(main())
