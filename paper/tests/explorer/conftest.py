"""An explorer of all records, for the tests of the page."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nonloc_paper.explorer.build import write_explorer

RECORDS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("explorer") / "page"
    write_explorer(root, RECORDS)
    return root


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
def visit(open_page, address):
    """A function that opens a panel."""

    def open_panel(name, width=1280, **options):
        page = open_page(f"{address}/index.html#{name}", width, **options)
        page.wait_for_selector("html[data-ready]")
        return page

    return open_panel
