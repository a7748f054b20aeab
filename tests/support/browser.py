"""A real browser for tests: headless Chromium, driven over its own pipe, without driver or package.

Guarantees: every request a page makes, every error on its console and every dialog is on record;
clicks and keys are the browser's own, at the place where the element is. The browser has a profile
of its own and no proxy, and is ended with the test. `find()` is None where there is none.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ANSWER_S = 60
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Enter": 13, "Tab": 9}


def find():
    """The path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Context manager: the process, and commands to it."""

    def __init__(self, folder):
        self.folder, self.pages, self._last, self._rest = folder, {}, 0, b""

    def __enter__(self):
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()
        launch = [sys.executable, "-c", LAUNCH, str(commands), str(answers), find(), *FLAGS]
        self.process = subprocess.Popen(
            [*launch, f"--user-data-dir={self.folder}"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        return self

    def __exit__(self, *_):
        os.close(self._commands)  # it ends when nobody can command it any more
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._answers)

    def send(self, method, session=None, **params):
        """Send a command and return its result. Raises AssertionError with what the browser said against it."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self.receive(ANSWER_S)).get("id") != self._last:
            pass
        assert "error" not in answer, (method, answer.get("error"))
        return answer["result"]

    def receive(self, seconds):
        """The next message, events told to their page; {} where none comes in time."""
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], max(0, end - time.monotonic()))[0]:
                assert seconds < ANSWER_S, "the browser does not answer"
                return {}
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if page := self.pages.get(message.get("sessionId")):
            page.note(message.get("method"), message.get("params", {}))
        return message

    def page(self, width, height=900):
        """A new page, so many CSS pixels wide."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.prefer(dark=False)
        return page


class Page:
    """One page: `requests` (URLs), `errors` (console, exceptions, dialogs), in order."""

    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target
        self.requests, self.errors, self._loads = [], [], 0

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def prefer(self, dark):
        """Show it to a reader who prefers dark pages, or light ones."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
        del self.browser.pages[self.session]

    def note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(f"console: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {params['message']}")
        elif method == "Page.loadEventFired":
            self._loads += 1

    def open(self, url):
        """Navigate and wait until the page has loaded."""
        before, end = self._loads, time.monotonic() + ANSWER_S
        failed = self.send("Page.navigate", url=url).get("errorText")
        assert not failed, failed
        while self._loads == before:
            assert time.monotonic() < end, f"{url} does not load"
            self.browser.receive(0.2)

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector):
        """The text a reader sees in the first element that fits."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def until(self, script, seconds=15):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"not within {seconds} s: {script}"
            time.sleep(0.05)
        return found

    def click(self, selector):
        """Click the middle of the first element that fits, which must be what lies there."""
        name = json.dumps(selector)
        x, y, hit = self.run(
            f"(() => {{ const node = document.querySelector({name}); node.scrollIntoView({{block: 'center'}});"
            "const box = node.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;"
            "return [x, y, node.contains(document.elementFromPoint(x, y))]; })()"
        )
        assert hit, f"{selector} is covered or out of sight"
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=KEYS[name], **text)

    def type(self, selector, text):
        """Put text into a field as typing does, in place of what it holds."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=text)

    def choose(self, selector, value):
        """Choose an option of a list, as a reader does."""
        name = json.dumps(selector)
        self.run(f"document.querySelector({name}).value = {json.dumps(value)}")
        self.run(f"document.querySelector({name}).dispatchEvent(new Event('change', {{bubbles: true}}))")

    def screenshot(self, path, whole=False):
        """A PNG of what is in sight, or of the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


def _pipe():
    """(read, write) descriptors, above those the browser is given."""
    made = []
    for end in os.pipe():
        made.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return made
