"""The documentation builds without a warning, and the site loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"[^>]*>')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def test_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        sources = ["".join(pair) for pair in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert sources
        assert [url for url in sources if url.startswith(("http:", "https:", "//"))] == [], page


def test_documents_every_public_name(site):
    import oproj_pass.capture
    import oproj_pass.deployment
    import oproj_pass.passes
    import oproj_pass.runtime

    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html"))
    documented = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(oproj_pass[\w.]+)"', pages)}
    packages = (
        oproj_pass, oproj_pass.capture, oproj_pass.deployment, oproj_pass.passes, oproj_pass.runtime,
    )  # fmt: skip
    assert {name for package in packages for name in package.__all__} - documented == set()


def test_every_page_is_reached_from_the_navigation(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        address = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert address == "index" or f'href="{address}/"' in home
