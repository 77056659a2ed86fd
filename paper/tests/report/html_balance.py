"""assert_balanced: whether a page is whole."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "path", "use", "rect", "image"}


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def assert_balanced(page):
    checker = Balance()
    checker.feed(page)
    assert checker.open == []
