"""Makes docs/assets/diff.png and diff_dark.png: a layer of a Llama, before and after sharding over 8 ranks.

A real diff of a real model (the shapes of Llama-3-8B, on the meta device), printed by `GraphDiff.to_html` and
photographed in a headless Chromium. Needs `pip install playwright pillow`, a `chromium` on the PATH and the
extra `hf`.
"""

import io
import logging
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from playwright.sync_api import sync_playwright
from transformers import LlamaConfig, LlamaForCausalLM

from oproj_pass.explanation.rewrite import rewrite_graph
from oproj_pass.passes import GraphDiff

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
PICTURES = {"light": ASSETS / "diff.png", "dark": ASSETS / "diff_dark.png"}
WIDTH, SCALE, COLOURS = 1180, 2, 96
MAX_BYTES = 300_000
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

logger = logging.getLogger(__name__)


def sharded_llama(size: int) -> GraphDiff:
    """The diff of a Llama, sharded over ``size`` ranks, in a step of 16 requests."""
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
        num_hidden_layers=8,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval().bfloat16()
        tokens = torch.zeros(16, 1, dtype=torch.long)
    return rewrite_graph(model, tokens, use_cache=False, size=size).diff(0, 1)


def photograph(html: str, scheme: str) -> bytes:
    """The hunk that holds the exchange, as a PNG; ``scheme`` is light or dark."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "diff.html"
        path.write_text(html, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.emulate_media(
            media="print", color_scheme=scheme
        )  # without the toolbar, which would cover the hunk
        page.goto(path.as_uri())
        hunk = page.locator(".hunk", has_text="all_to_all").first
        return hunk.screenshot(animations="disabled", timeout=180_000)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    html = sharded_llama(8).to_html()
    for scheme, path in PICTURES.items():
        picture = Image.open(io.BytesIO(photograph(html, scheme)))
        picture.quantize(COLOURS).save(path, optimize=True)
        logger.info("%s: %s, %d bytes", path.name, picture.size, path.stat().st_size)
        if path.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{path.name} is larger than {MAX_BYTES} bytes")
