"""The pictures in docs/playground.md, from the demo's folder: `make demo`, then run this.

.venv/bin/python scripts/playground_screenshots.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import grace

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "runs" / "demo"
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 200_000
PERSON = "7"

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from playground_cases import config_for, serving  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder) / "index"
        grace.build_index(DEMO / "catalog.jsonl", DEMO / "schema.yaml", out=out)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        plan, beside = grace.BeamPlan((1, 32, 64), 64), config_for(DEMO / "index")
        with serving(out, str(DEMO / "model"), plan, beside) as (url, _):
            wide = {"viewport": {"width": 1360, "height": 900}}
            phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5}
            with_person(browser, url, "compare", wide, top)
            with_person(browser, url, "tree", wide | {"color_scheme": "dark"}, tree)
            with_person(browser, url, "phone", phone, tree)
        browser.close()


def with_person(browser, url: str, name: str, options: dict, show) -> None:
    page = browser.new_context(reduced_motion="reduce", **options).new_page()
    page.goto(url)
    for _ in range(4):  # by then everything is warm: milliseconds as they are served
        page.wait_for_selector("#columns[aria-busy=false]")
        page.select_option("#example", PERSON)
        page.wait_for_timeout(800)
    show(page)
    path = IMAGES / f"playground-{name}.png"
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    # The median cut would give rare colours, and with them two rules, one shade.
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES, path
    print(path, path.stat().st_size)
    page.context.close()


def top(page: Page) -> None:
    page.evaluate("scrollTo(0, 0)")


def tree(page: Page) -> None:
    """The second step of a mode that keeps beams in vain, one of them pointed at."""
    page.check("#tree-modes input[value='bitmask+bloom']")
    page.wait_for_timeout(800)
    page.focus("#tree [role=listbox]")
    page.keyboard.press("ArrowLeft")
    while not page.query_selector("#tree .active.in-vain"):
        page.keyboard.press("ArrowDown")
    page.evaluate("document.querySelector('#growth-title').scrollIntoView()")
    page.evaluate("scrollBy(0, -12)")


if __name__ == "__main__":
    main()
