"""The pages of the documentation: all in the navigation, with links and images that exist."""

import re

import pytest
import yaml

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def pages_of(nav):
    """Paths of the pages in a navigation tree."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [path for child in children for path in pages_of(child)]


def files_linked(text):
    """Targets of the relative links and images in Markdown, without those in code."""
    targets = [target.partition("#")[0] for target in LINK.findall(CODE.sub("", text))]
    return [target for target in targets if target and ":" not in target]


@pytest.fixture(scope="module")
def docs(repository):
    return repository / "docs"


def test_every_page_is_in_the_navigation_once(docs, repository):
    site = yaml.safe_load((repository / "mkdocs.yml").read_text("utf-8"))
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(pages_of(site["nav"])) == sorted(pages)


def test_links_and_images_exist_inside_the_site(docs):
    count = 0
    for page in docs.rglob("*.md"):
        for target in files_linked(page.read_text("utf-8")):
            count += 1
            path = (page.parent / target).resolve()
            assert path.is_file(), f"{page} links to {target}"
            assert path.is_relative_to(docs.resolve()), f"{page} links to {target}, not in the site"
    assert count, "no page has a link"


def test_links_of_the_readme_exist(repository):
    targets = files_linked((repository / "README.md").read_text("utf-8"))
    assert targets
    assert not [target for target in targets if not (repository / target).exists()]


def test_links_in_code_do_not_count():
    text = "[a](a.md#top) `[b](b.md)` [c](https://c.org) [d](#d)\n```\n[e](e.md)\n```\n![f](f.png)"
    assert files_linked(text) == ["a.md", "f.png"]
