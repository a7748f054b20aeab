"""A real browser for tests: this machine's Chromium, without a window, driven by Playwright.

Guarantees:
- Every request of a page, every error on its console and every dialog is on record.
- Clicks and keys are the browser's own, at the place where the element is; a covered element is not clicked.
- The browser has a fresh profile and no proxy, and ends with its context.
"""

import shutil
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 15_000


def find():
    """The path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Context manager. While it is open, its thread can run no other event loop: Playwright's is in the way."""

    def __enter__(self):
        from playwright.sync_api import sync_playwright  # few tests need it

        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=find(), args=["--no-proxy-server"])
        return self

    def __exit__(self, *_):
        self._chromium.close()
        self._playwright.stop()

    def page(self, width, height=900):
        """A new page, so many CSS pixels wide."""
        return Page(self._chromium.new_page(viewport={"width": width, "height": height}))


class Page:
    """One page: `requests` (URLs) and `errors` (console, exceptions, dialogs) in their order."""

    def __init__(self, page):
        self.page, self.requests, self.errors = page, [], []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)
        page.on("dialog", self._refuse)
        self.open, self.run, self.text, self.click = page.goto, page.evaluate, page.inner_text, page.click
        self.type, self.key, self.close = page.fill, page.keyboard.press, page.close

    def _note(self, message):
        if message.type in ("error", "warning", "assert"):
            self.errors.append(f"console: {message.text}")

    def _refuse(self, dialog):
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def prefer(self, dark):
        """Show it to a reader who prefers dark pages, or light ones."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")

    def choose(self, selector, value):
        """Choose an option of a list, also of one that this width hides."""
        self.page.select_option(selector, value, force=True)

    def until(self, script, seconds=15):
        """Wait until an expression is true. Playwright's own wait evaluates text, which our pages' policies forbid."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"not within {seconds} s: {script}"
            self.page.wait_for_timeout(50)
