"""Reads a page as a browser does, for what tests look at: elements, attributes, text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = frozenset(("meta", "link", "input", "br", "img", "hr"))


@dataclass
class Element:
    """An element with its attributes."""

    tag: str
    attributes: dict[str, str]


@dataclass
class ReadPage(HTMLParser):
    """A page."""

    text: str
    elements: list[Element] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)
    badly_nested: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in _EMPTY:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self.open_tags and self.open_tags[-1] == tag:
            self.open_tags.pop()
        else:
            self.badly_nested.append(f"</{tag}> at {self.getpos()} in {self.open_tags[-3:]}")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def shown(self) -> str:
        """All of its text, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[Element]:
        """All elements of a tag."""
        return [each for each in self.elements if each.tag == tag]
