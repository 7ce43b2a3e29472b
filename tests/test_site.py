"""The documentation as a site: its search works from a disk, without a server or a network."""

import pytest
import yaml

from support.pages import browser

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    """The built site, without the reference of the API, which takes most of the time."""
    mkdocs = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    from mkdocs.commands.build import build

    described = yaml.safe_load((repository / "mkdocs.yml").read_text("utf-8"))
    plugins = [plugin for plugin in described["plugins"] if "mkdocstrings" not in plugin]
    folder = tmp_path_factory.mktemp("site")
    build(mkdocs.load_config(str(repository / "mkdocs.yml"), plugins=plugins, site_dir=str(folder)))
    return folder


def test_the_search_works_from_a_disk(site):
    with browser() as chromium:
        tab = chromium.new_page()
        requests, errors = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.set_default_timeout(60_000)
        tab.goto((site / "family" / "em.html").as_uri())
        tab.keyboard.press("/")
        tab.keyboard.type("hopfield retrieval")
        tab.locator(".md-search-result__link").first.click()
        tab.wait_for_url("**/family/hopfield.html*")
    assert errors == []
    assert [url for url in requests if not url.startswith("file:")] == []
