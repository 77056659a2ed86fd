"""A browser and an explorer of all records, for the tests of the page."""

import functools
import os
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nonloc_paper.explorer.build import write_explorer

RECORDS = Path(__file__).parents[2] / "results"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("explorer") / "page"
    write_explorer(root, RECORDS)
    return root


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path, "Chromium is missing; install Debian's package, or name another in CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["disk", "server"])
def address(request, folder):
    if request.param == "disk":
        yield folder.as_uri()
        return
    handler = functools.partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def visit(browser, address):
    """A function that opens a panel; in the end, nothing was complained about and nothing asked for elsewhere."""
    complaints, requests, contexts = [], [], []

    def open_panel(name, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}/index.html#{name}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_panel
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((f"{address}/", "data:"))] == []
