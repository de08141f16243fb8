"""The page in a real browser: it searches and folds, runs no label, and asks for nothing."""

import shutil
from dataclasses import replace

import pytest

from oproj_pass.passes.diff import diff_graphs

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need the playwright package"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need a chromium on the PATH")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update"]
WIDTHS = {"narrow": 390, "wide": 1280}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a page from a file; fails if it logs an error or asks for anything but that file."""
    requests, errors, contexts = [], [], []

    def open_(html, **options):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in requests if url not in ((tmp_path / "page.html").as_uri(), "about:srcdoc")] == []


@pytest.fixture(scope="module")
def two_hunks(decoder):
    """A diff of two hunk groups: the sharded projections, and a cast of the result."""
    before, after = decoder(3)
    *rest, output = after.nodes
    last = replace(
        rest[-1], name="cast", target="torch.float", args=(*output.args[1:2],), dtype="float32", path=""
    )
    return diff_graphs(before, replace(after, nodes=(*rest, last, output)))


def test_search_shows_only_what_matches_and_an_empty_one_shows_all(open_page, two_hunks):
    page = open_page(two_hunks.to_html())
    assert page.locator(".hunk:visible").count() == 2
    page.get_by_role("searchbox").fill("ALL_TO_ALL")
    assert page.locator(".hunk:visible").count() == 1
    assert page.locator("#found").inner_text() == "1 of 2 hunks"
    assert not page.locator(".rest").is_visible()
    hits = page.locator(".node.hit .op").all_text_contents()
    assert hits == ["+ all_to_all_single", "+ wait_tensor"]  # the wait names it among its arguments
    page.get_by_role("searchbox").fill("nothing like this")
    assert page.locator(".hunk:visible").count() == 0
    page.get_by_role("searchbox").fill("")
    assert page.locator(".hunk:visible").count() == 2
    assert page.locator(".hit").count() == 0


def test_search_finds_a_folded_layer(open_page, two_hunks):
    page = open_page(two_hunks.to_html())
    page.get_by_role("searchbox").fill("layers.1-2.attn")
    assert page.locator(".more li.hit").is_visible()


@pytest.mark.parametrize(("wanted", "is_there"), [("layers.2.attn", True), ("layers.3.attn", False)])
def test_search_finds_one_layer_among_those_folded_and_no_other(open_page, two_hunks, wanted, is_there):
    page = open_page(two_hunks.to_html())
    page.get_by_role("searchbox").fill(wanted)
    assert page.locator(".more li.hit:visible").count() == is_there
    assert page.locator("#found").inner_text().startswith(f"{int(is_there)} of 2 hunks")


def test_search_finds_a_node_that_was_kept(open_page, two_hunks):
    kept = next(c.node.name for c in two_hunks.changes if c.kind.value == "kept" and "dot" in c.node.target)
    page = open_page(two_hunks.to_html())
    page.get_by_role("searchbox").fill(kept)
    assert page.locator("#found").inner_text().endswith(", and kept nodes")
    assert page.locator(".rest li.hit").count() == 1
    page.get_by_role("searchbox").fill("")
    assert page.locator(".rest li.hit").count() == 0


def test_folds_and_unfolds_one_hunk_and_all(open_page, two_hunks):
    page = open_page(two_hunks.to_html())
    drawings = page.locator(".drawing:visible")
    assert drawings.count() == 2
    page.locator(".hunk > summary").first.click()
    assert drawings.count() == 1
    page.get_by_role("button", name="Fold all", exact=True).click()
    assert drawings.count() == 0
    page.get_by_role("button", name="Unfold all").click()
    assert drawings.count() == 2


def test_pointing_at_a_node_shows_its_origin(open_page, two_hunks):
    page = open_page(two_hunks.to_html())
    page.locator(".node", has_text="+ all_to_all_single").hover()
    detail = page.locator(".detail").first.inner_text()
    assert "module layers.0.attn.o_proj" in detail
    assert "conftest.py:" in detail


def test_a_drawing_is_one_tab_stop_and_arrow_keys_walk_its_nodes(open_page, two_hunks):
    page = open_page(two_hunks.to_html())
    drawing = page.locator("svg").first
    assert drawing.locator(".node[tabindex='0']").count() == 1
    drawing.locator(".node").first.focus()
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.querySelector('title').textContent")
    assert focused == drawing.locator(".node title").nth(1).text_content()
    assert page.locator(".detail").first.inner_text().strip() == focused.strip()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_itself_never_scrolls_sideways(open_page, two_hunks, width):
    page = open_page(two_hunks.to_html(), viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(open_page, two_hunks, scheme):
    page = open_page(two_hunks.to_html(), color_scheme=scheme)
    pairs = page.evaluate(
        """() => [...document.querySelectorAll('h1, p, li, td, th, .path, .chip, .line, .detail, text')]
        .map((item) => {
          const style = getComputedStyle(item);
          const box = item.closest('.node') && item.closest('.node').querySelector('rect');
          let under = item, fill = box ? getComputedStyle(box).fill : 'rgba(0, 0, 0, 0)';
          while (fill === 'rgba(0, 0, 0, 0)') {
            fill = getComputedStyle(under).backgroundColor;
            under = under.parentElement;
          }
          return [item instanceof SVGElement ? style.fill : style.color, fill, item.textContent.slice(0, 40)];
        })"""
    )
    assert len(pairs) > 50
    assert [pair for pair in pairs if _contrast(*pair[:2]) < 4.5] == []


@pytest.mark.parametrize("frame", [False, True], ids=["page", "notebook"])
def test_runs_nothing_that_a_label_says(open_page, two_hunks, frame):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    *rest, output = two_hunks.after.nodes
    nodes = (*rest, replace(rest[-1], name=evil, target=evil, path=evil, source=evil), output)
    diff = diff_graphs(two_hunks.after, replace(two_hunks.after, nodes=nodes))
    page = open_page(diff._repr_html_() if frame else diff.to_html())
    shown = page.frame_locator("iframe") if frame else page
    assert any(evil in title for title in shown.locator(".node title").all_text_contents())


def test_the_policy_stops_a_script_that_is_not_the_pages_own(browser, two_hunks, tmp_path):
    page, path = browser.new_page(), tmp_path / "page.html"
    for html, ran in (("<main>", True), (two_hunks.to_html(), None)):
        script = "<main><script>window.ran = true</script>"
        path.write_text(html.replace("<main>", script), encoding="utf-8")
        page.goto(path.as_uri())
        assert page.evaluate("window.ran") is ran
    page.close()


def _contrast(*colours):
    """Contrast ratio of two `rgb(...)` colours, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
