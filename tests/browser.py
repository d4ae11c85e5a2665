"""Chromium without a window, driven by the DevTools protocol over pipes: real clicks and keys, no further packages.

Messages are JSON that ends with a zero byte, on the file descriptors 3 and 4 of the browser.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 30.0
EXEC = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 5) for end in sys.argv[1:3])  # neither is 3 or 4
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
POLL = """
new Promise((done, failed) => {
  const end = setTimeout(() => failed(new Error("never: " + %(text)s)), %(ms)d);
  const look = () => {
    const value = (%(expression)s);
    if (!value) return setTimeout(look, 10);
    clearTimeout(end);
    done(value);
  };
  look();
})
"""


def find():
    """The path of a browser: that of the variable CHROMIUM, or one of the usual names; None: there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


needs_browser = pytest.mark.skipif(find() is None, reason="no Chromium here; install it or name one with CHROMIUM")


class Tab:
    """A page of a browser."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.errors = browser.errors

    def send(self, method, **params):
        return self._browser.send(method, params, self._session)

    def run(self, expression):
        """The value of an expression of JavaScript, awaited."""
        reply = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"].get("exception", reply)
        return reply["result"].get("value")

    def until(self, expression):
        """The value of an expression once it is true."""
        return self.run(POLL % {"expression": expression, "text": json.dumps(expression), "ms": 1000 * PATIENCE_S})

    def go(self, address):
        self.send("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def point(self, selector, *, click=True):
        """Moves the mouse to the middle of an element, and presses it there."""
        box = self.until(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); if (!node) return null;"
            " node.scrollIntoView({block: 'nearest'}); const box = node.getClientRects()[0];"
            " return box && [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def press(self, key, code=None, number=0, text=""):
        for kind in ("keyDown", "keyUp"):
            fields = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
            self.send("Input.dispatchKeyEvent", type=kind, **fields, **({"text": text} if kind == "keyDown" else {}))

    def view(self, width, height, scheme):
        """Sizes the page and chooses light or dark colours."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, **options):
        """A picture of the page."""
        return base64.b64decode(self.send("Page.captureScreenshot", **options)["data"])


class Browser:
    """A browser, and what went wrong in its pages."""

    def __init__(self, folder):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            find(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--hide-scrollbars",
        ]
        command += ["--disable-dev-shm-usage", f"--user-data-dir={folder}", "--no-first-run", "about:blank"]
        wrapped = [sys.executable, "-c", EXEC, str(to_browser), str(from_browser), *command]
        self.process = subprocess.Popen(wrapped, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._rest, self.errors = itertools.count(1), b"", []

    def send(self, method, params=None, session=None):
        """The result of a command. What pages report meanwhile is kept in `errors`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params or {}}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == number:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]
            params = reply.get("params", {})
            if "exceptionDetails" in params or params.get("entry", {}).get("source", "network") != "network":
                self.errors.append(params)  # a refusal of the server is none

    def _receive(self):
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], 2 * PATIENCE_S)[0], "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def tab(self):
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log"):
            tab.send(f"{domain}.enable")
        tab.send("Emulation.setFocusEmulationEnabled", enabled=True)
        return tab

    def close(self):
        with contextlib.suppress(AssertionError, BrokenPipeError):
            self.send("Browser.close")
        self.process.wait(PATIENCE_S)
        os.close(self._write)
        os.close(self._read)


@contextlib.contextmanager
def browsing(folder):
    """A browser whose profile is in a new folder."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
