"""Chromium without a window: the document that a page becomes, and its picture."""

import os
import shutil
import subprocess
import tempfile

HOW_TO_GET_IT = "no chromium: install chromium, or set CHROMIUM to the path of chromium or chrome"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
VIRTUAL_MS = 30_000  # of the page's clock, which waits for its requests and skips all other waiting


def program():
    """The path of the browser: what CHROMIUM names, or on the path. A test fails without it."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, HOW_TO_GET_IT
    return found


def document(address):
    """The page's document in HTML, once its scripts have run."""
    return _run(address, "--dump-dom")


def photograph(address, path, *, width, height):
    """Writes a picture of the page, PNG, width x height pixels."""
    _run(address, f"--screenshot={path}", f"--window-size={width},{height}")


def _run(address, *arguments):
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                program(),
                "--headless",
                "--no-sandbox",  # which root cannot have; the page is our own
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--virtual-time-budget={VIRTUAL_MS}",
                *arguments,
                address,
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
