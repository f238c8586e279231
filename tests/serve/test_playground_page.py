"""The page in a headless Chromium: by mouse, by keyboard alone, on a phone, when things fail."""

import shutil
from pathlib import Path

import pytest
from playground_cases import AT, SCHEMA, config_for, film, model, serving, write_world

import grace

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

CHROMIUM = shutil.which("chromium")
DEMO = Path(__file__).parents[2] / "runs" / "demo"
PHONE = {"width": 390, "height": 844}
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; Debian: apt-get install it")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    world = write_world(tmp_path_factory.mktemp("world"))
    with serving(world / "index", model()) as (url, _):
        yield url


@pytest.fixture
def visit(browser):
    """Open a page, wait for its tree; at the end nothing may have gone wrong or elsewhere."""
    opened, complaints = [], []

    def open_page(url: str, ready="#tree svg", **options):
        page = browser.new_context(reduced_motion="reduce", **options).new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith(url) else complaints.append(r.url))
        opened.append(page)
        page.goto(url)
        page.wait_for_selector(ready)
        page.complaints = complaints
        return page

    yield open_page
    for page in opened:
        page.context.close()
    assert complaints == []


def settle(page):
    page.wait_for_selector("#columns[aria-busy=false]")
    page.wait_for_selector("#tree:not([aria-busy])")


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.getAttribute('role')")


def tab_to(page, wanted: str) -> None:
    for _ in range(60):
        if focused(page) == wanted:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the Tab key does not reach {wanted}")


def violations(page) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found]


def overflow(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_a_picked_user_is_compared_and_the_tree_is_theirs(visit, url):
    page = visit(url)
    assert page.locator(".column h3").all_inner_texts()[0].split()[0] == "exact"
    assert page.locator(".column").count() == 4
    before = page.inner_text("#columns")
    page.select_option("#example", "2")
    settle(page)
    page.wait_for_function(
        "before => document.querySelector('#columns').innerText !== before", arg=before
    )
    assert "30" in page.input_value("#field-age")
    assert page.locator(".column.served").count() == 1
    assert "Film" in page.inner_text(".ads")
    assert page.inner_text("#verdict").startswith("Eligible ads found")
    assert "Step 3 of 3" in page.inner_text("#told")
    page.check("#modes input[value='static-kway']")
    page.wait_for_selector(".column >> nth=4")
    page.check("#tree-modes input[value='off']")
    page.wait_for_selector("#tree .node.in-vain")


def test_an_edited_user_is_asked_for_and_the_history_takes_its_set_along(visit, url):
    page = visit(url)
    page.fill("#field-age", "61")
    assert page.is_visible("#stale")
    page.click("#field-history")
    page.keyboard.type("film 77")
    page.click("#field-history-found >> text=Film 77")
    assert "Film 77 · good" in page.inner_text(".chips[aria-label=history]")
    page.click(
        "[aria-label='Remove US/TX'], [aria-label='Remove US/MN'], [aria-label='Remove US/CA']"
    )
    page.click("#field-place")
    page.keyboard.type("US/CA/city:Eve")
    page.keyboard.press("Enter")
    with page.expect_request("**/compare") as asked:
        page.click("#compare")
    request = asked.value.post_data_json["request"]
    assert request["attributes"]["age"] == request["features"]["age"] == 61
    assert request["features"]["history"][-1] == {"ad_id": 77, "action": "good"}
    assert request["attributes"]["watched"][-1] == "77"
    assert request["attributes"]["place"] == ["US", "US/CA", "US/CA/city:Eve"]
    settle(page)
    page.wait_for_selector("#stale", state="hidden")


def test_the_keyboard_alone_is_enough(visit, url):
    page = visit(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to(page, "example")
    page.keyboard.press("ArrowDown")
    settle(page)
    tab_to(page, "compare")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    settle(page)
    tab_to(page, "step")
    page.keyboard.press("Home")
    assert "starts from the empty prefix" in page.inner_text("#told")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#told").startswith("Step 1 of 3")
    assert page.get_attribute("#step", "aria-valuetext") == "step 1 of 3"
    tab_to(page, "listbox")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#told").startswith("Step 2 of 3")
    page.keyboard.press("ArrowDown")
    active = page.get_attribute("#tree [role=listbox]", "aria-activedescendant")
    story = page.get_attribute(f"#{active}", "aria-label")
    assert page.inner_text(".tip").split("\n")[0] in story
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#told").startswith("Step 1 of 3")
    visible = "document.querySelectorAll('#tree .node:not(.later)').length"
    one = page.evaluate(visible)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(visible) > one  # it grows


def test_the_step_in_words_lists_every_branch_that_is_drawn(visit, url):
    page = visit(url)
    page.check("#tree-modes input[value='valid']")
    settle(page)
    page.click("#in-words summary")
    for _ in range(3):
        rows = page.locator("#branches tbody tr").count()
        assert rows == page.locator("#tree [role=option]").count() > 0
        page.click("#back")
    words = page.inner_text("#branches")
    assert "start" in words


def test_axe_finds_nothing_in_light_and_dark(visit, url):
    page = visit(url, color_scheme="light")
    page.check("#tree-modes input[value='off']")
    settle(page)
    page.click("#in-words summary")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def test_a_phone_needs_no_sideways_scrolling(visit, url):
    page = visit(url, viewport=PHONE, has_touch=True)
    assert overflow(page) <= 0
    assert page.locator(".column details[open]").count() == 1
    page.click("#editor summary")
    page.click("#in-words summary")
    assert overflow(page) <= 0
    page.set_viewport_size({"width": 700, "height": 390})
    page.wait_for_function("() => document.querySelector('#tree svg').viewBox.baseVal.width > 500")
    assert overflow(page) <= 0


def test_what_fails_is_said_in_words(visit, url):
    page = visit(url)
    page.fill("#field-at", "noon")
    page.click("#compare")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem").startswith("at: ")
    assert "wrong" in page.get_attribute("[data-name=at]", "class")
    page.fill("#field-at", "")
    page.route("**/compare", lambda route: route.abort())
    page.click("#compare")
    page.wait_for_function("() => document.querySelector('#problem').innerText.includes('reached')")
    page.unroute("**/compare")
    page.click("#compare")
    page.wait_for_selector("#problem", state="hidden")
    # The browser itself notes failed requests.
    assert all("Failed to load resource" in line for line in page.complaints)
    page.complaints.clear()


def test_a_busy_server_is_asked_again_and_a_token_is_asked_for(visit, url):
    page = visit(url)
    answers = iter([429, 401])

    def refuse(route):
        status = next(answers, None)
        if status is None:
            return route.continue_()
        return route.fulfill(status=status, headers={"retry-after": "0"}, json={"error": {}})

    page.route("**/compare", refuse)
    page.click("#compare")
    page.wait_for_selector("#token:not([hidden])")
    assert "token" in page.inner_text("#problem")
    page.fill("#token-text", "secret")
    with page.expect_request("**/compare") as asked:
        page.keyboard.press("Enter")
    assert asked.value.headers["authorization"] == "Bearer secret"
    page.wait_for_selector("#token", state="hidden")
    assert all("Failed to load resource" in line for line in page.complaints)
    page.complaints.clear()


def test_a_user_who_may_see_nothing_is_told_which_rules_refuse(visit):
    rows = [film(number) | {"rules": {"age": {"min": 18}}} for number in range(20)]
    # No file of people, either: the page starts from somebody of whom nothing is known.
    with serving(grace.build_index(rows, SCHEMA), model(), config=config_for("")) as (url, _):
        page = visit(url)
        assert page.is_hidden("#examples")
        assert "age refuses 20" in page.inner_text("#told")
        assert "No ad" in page.inner_text(".column.served")
        page.fill("#field-age", "40")
        page.fill("#field-at", AT)
        page.click("#compare")
        page.wait_for_selector("#tree .node >> nth=3")
        assert page.get_attribute("#step", "max") == "3"


@pytest.mark.skipif(not (DEMO / "model").is_dir(), reason="no runs/demo: `make demo` makes it")
def test_the_demo(visit, tmp_path):
    # Whatever release wrote the folder: an index is made anew in a moment.
    index = grace.build_index(DEMO / "catalog.jsonl", DEMO / "schema.yaml", out=tmp_path / "index")
    plan, beside = grace.BeamPlan((1, 32, 64), 64), config_for(DEMO / "index")
    with serving(tmp_path / "index", str(DEMO / "model"), plan, beside) as (url, _):
        page = visit(url)
        assert page.inner_text("#about").startswith(f"{index.num_ads:,} ads")
        page.select_option("#example", "6")
        settle(page)
        page.check("#tree-modes input[value='valid']")
        page.wait_for_selector("#tree .node.in-vain")
        page.click("#back")
        assert "in vain" in page.inner_text("#told")
        page.set_viewport_size(PHONE)
        assert overflow(page) <= 0
