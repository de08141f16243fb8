"""Reads a page as a browser would."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Collects tags, attributes and text of a page as a browser would."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)
