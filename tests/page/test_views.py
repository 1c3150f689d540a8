"""Every view, light and dark, on a phone and a desktop: width, contrast, keyboard; and the tab Stock."""

import json
import os
import urllib.parse

from browser import DESKTOP, LONG, PHONE, VIEWS, PageTest, until, violations
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

LOOKS = [(scheme, size) for scheme in ("light", "dark") for size in (DESKTOP, PHONE)]
# Whether each view is shown in each look. Otherwise each has one, in turn.
IN_ALL_LOOKS = os.environ.get("PAGE_LOOKS", "all") == "all"


class WithResults(PageTest):
    """Views that show the results of a race that oversold, and of one of two strategies."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab.stop_all()
        cls.lab.race(["no-lock", "single-sql"])
        cls.lab.race(["no-lock"], stock=100, buyers=50, orders=10)

    def each_look(self):
        for number, view in enumerate(VIEWS):
            for scheme, size in LOOKS if IN_ALL_LOOKS else [LOOKS[number % len(LOOKS)]]:
                self.browser.look(scheme, size)
                self.visit(view)
                self.wait_for_content(view)
                yield f"{view}, {scheme}, {size[0]} px"

    def wait_for_content(self, view):
        content = {"race": "#view-race .verdict", "compare": "#view-compare tbody tr", "strategies": "#strategy-cards article", "failures": "#story-view .player",
                   "stock/1001": "#stock-view tbody tr"}
        until(f"{view} has its content", lambda: self.browser.shown(content[view]))


class Looks(WithResults):
    def test_no_view_scrolls_sideways_and_axe_finds_nothing(self):
        for look in self.each_look():
            for details in self.browser.all("details"):
                self.browser.execute_script("arguments[0].open = true", details)
            for question in ("decides", "load"):
                for option in self.browser.shown(f"[name='question-{question}']")[:1]:
                    option.click()
            self.assertLessEqual(self.browser.overflow(), 0, look)
            for region in self.browser.shown(".scroll"):
                inner = self.browser.execute_script("return arguments[0].scrollWidth - arguments[0].clientWidth", region)
                self.assertLessEqual(inner, 0, f"{look}: {region.get_attribute('aria-label')}")
            self.assertEqual(violations(self.browser), [], look)

    def test_first_visit_passes_axe(self):
        self.browser.get("about:blank")
        self.browser.look("dark", PHONE)
        self.visit()
        self.browser.execute_script(
            "for (const id of ['hero', 'example']) document.getElementById(id).hidden = false")
        self.assertEqual(violations(self.browser), [])
        self.assertLessEqual(self.browser.overflow(), 0)

    def test_reduced_motion_stops_animations(self):
        self.lab.start(["for-update"], **LONG)
        for motion, is_moving in (("no-preference", True), ("reduce", False)):
            self.browser.look(motion=motion)
            self.visit()
            until("the race is shown", lambda: self.browser.shown("#view-race .state.live"))
            self.browser.wait_for_frames()
            moving = self.browser.execute_script("return document.getAnimations().length > 0")
            self.assertEqual(moving, is_moving, motion)
        self.lab.stop_all()


# Marks the focused element and returns what the tests need to know of it. A radio button in segments is
# invisible; its label shows the focus.
FOCUSED = """
const at = document.activeElement;
if (at === document.body) return null;
at.dataset.reached = "yes";
const seen = at.closest(".segments label") ?? at;
const style = getComputedStyle(seen);
return {text: at.outerHTML.slice(0, 120), outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
"""

# Controls that the Tab key has not reached. Of a group of radio buttons, one is enough.
MISSED = """
const visible = (node) => node.checkVisibility() && !node.matches(":disabled");
const reached = (node) => node.dataset.reached
    || (node.type === "radio" && [...document.getElementsByName(node.name)].some((one) => one.dataset.reached));
return [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
    .filter(visible).filter((node) => !reached(node)).map((node) => node.outerHTML.slice(0, 120));
"""


class Typing:
    """Presses keys in the browser of a test."""

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def focus(self, condition, what):
        """Presses Tab until the focused element fulfils the condition."""
        for _ in range(150):
            self.press(Keys.TAB)
            element = self.browser.switch_to.active_element
            if condition(element):
                return element
        raise AssertionError(f"the Tab key does not reach {what}")

    def focus_text(self, text):
        return self.focus(lambda element: element.text == text, text)

    def focus_name(self, name):
        return self.focus(lambda element: element.get_attribute("name") == name, name)


class KeyboardRace(Typing, PageTest):
    def test_race_is_started_and_stopped_by_keyboard(self):
        self.visit()
        self.focus_name("strategy")
        for _ in range(10):
            if self.browser.switch_to.active_element.get_attribute("value") == "for-update":
                break
            self.press(Keys.ARROW_DOWN)
        for name, value in (("stock", 900000), ("buyers", 50), ("orders", 2000)):
            self.focus_name(name)
            self.press(Keys.CONTROL, "a")
            self.press(str(value))
        self.focus_text("Start the race")
        self.press(Keys.ENTER)
        until("it runs", lambda: self.browser.shown("#view-race .state.live"))
        race = self.lab.races()[0]["id"]
        self.focus_text("Stop the race")
        self.press(Keys.ENTER)
        self.assertEqual(self.lab.wait_for_end(race), "stopped")


class Keyboard(Typing, WithResults):
    def test_tab_reaches_every_control_and_shows_where(self):
        for view in VIEWS:
            with self.subTest(view=view):
                self.visit(view)
                self.wait_for_content(view)
                self.browser.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
                self.browser.one("html").send_keys(Keys.TAB)
                for _ in range(250):
                    focused = self.browser.execute_script(FOCUSED)
                    # After the last control, the focus leaves the document.
                    if focused is None:
                        break
                    self.assertTrue(focused["outline"], focused["text"])
                    self.press(Keys.TAB)
                self.assertEqual(self.browser.execute_script(MISSED), [])

    def test_table_is_sorted_by_keyboard(self):
        self.visit("compare")
        self.wait_for_content("compare")
        self.focus_text("Oversold")
        self.press(Keys.ENTER)
        until("ascending", lambda: self.browser.shown("#view-compare [aria-sort=ascending]"))
        self.press(Keys.ENTER)
        until("descending", lambda: self.browser.shown("#view-compare [aria-sort=descending]"))
        self.focus(lambda element: element.get_attribute("data-strategy") == "single-sql", "the run of single-sql")
        self.press(Keys.ENTER)
        until("its run is shown", lambda: self.browser.text("#view-compare .run-title") == "single-sql")
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("data-strategy"), "single-sql")

    def test_questions_end_in_one_strategy(self):
        self.visit("strategies")
        self.focus_name("question-decides")
        self.press(Keys.SPACE)
        self.focus_name("question-load")
        self.press(Keys.SPACE)
        until("one strategy", lambda: "Use single-sql" in self.browser.text("#chooser .choice-result"))
        self.assertEqual(self.browser.text("#chooser .command-text"), "STRATEGY=single-sql")
        self.press(Keys.ARROW_DOWN)
        self.focus_name("question-refuses")
        self.press(Keys.SPACE, Keys.ARROW_DOWN)
        until("another one", lambda: "Use redis-lua" in self.browser.text("#chooser .choice-result"))
        self.assertIn("STRATEGY=redis-lua", self.browser.text("#chooser .command-text"))

    def test_unit_is_deducted_by_keyboard(self):
        self.visit()
        self.focus_text("Stock")
        self.press(Keys.ENTER)
        self.focus_name("sku")
        self.press("1001", Keys.ENTER)
        until("its levels are shown", lambda: self.browser.shown("#stock-view .sku"))
        self.focus_text("Deduct")
        self.press(Keys.ENTER)
        until("the answer is shown", lambda: "Took 1 unit" in self.browser.text("#stock-view .answer"))


class Stock(PageTest):
    def sold(self):
        return self.lab.get("/stock/1001/audit")["warehouses"][0]["sold"]

    def form(self, name):
        return self.browser.one(f"form[aria-label='{name}']")

    def test_deduct_and_adjust_by_hand(self):
        self.visit("stock/1001")
        until("the levels are shown", lambda: self.browser.shown("#stock-view tbody tr"))
        before = self.sold()
        form = self.form("Deduct")
        quantity = form.find_element(By.NAME, "quantity")
        quantity.clear()
        quantity.send_keys("3")
        curl = form.find_element(By.CLASS_NAME, "command-text").text
        self.assertIn(self.lab.url + "/stock/deduct", curl)
        self.assertIn("""'{"sku":"1001","quantity":3}'""", curl)
        form.find_element(By.CSS_SELECTOR, "[type=submit]").click()
        until("it is taken", lambda: "Took 3 units" in form.text)
        self.assertEqual(self.sold(), before + 3)
        form = self.form("Adjust")
        reason = form.find_element(By.NAME, "reason")
        reason.clear()
        reason.send_keys("found in the attic")
        form.find_element(By.CSS_SELECTOR, "[type=submit]").click()
        until("it is adjusted", lambda: "Changed by 10" in form.text)
        until("the ledger has it", lambda: "found in the attic" in self.browser.text("#stock-view section[aria-label=Ledger] tbody tr"))
        self.browser.shown("#stock-view section[aria-label=Ledger] tbody button")[0].click()
        until("the operation is shown", lambda: "committed" in self.form("Look up an operation").text)
        lines = [line.text for line in self.browser.shown("form[aria-label='Look up an operation'] .answer")]
        self.assertEqual((len(lines), lines[0]), (2, "committed."))
        self.assertIn("agree", self.browser.text("#stock-view section[aria-label=Audit]"))

    def test_open_hold_shows_how_long_it_lasts(self):
        body = {"lines": [{"sku": "1001", "quantity": 2}], "expires_in_s": 75}
        status, hold = self.lab.request("POST", "/holds", body, key="hold-of-the-page")
        self.assertEqual(status, 201, hold)
        hold = json.loads(hold)["id"]
        self.addCleanup(self.lab.request, "POST", f"/operations/{hold}/release", {})
        self.visit("stock/1001")
        css = "#stock-view section[aria-label='Open holds']"
        until("the hold is shown", lambda: self.browser.shown(css))
        left = lambda: [cell.text for cell in self.browser.shown(f"{css} tbody tr:last-child td")][1:3]
        units, first = left()
        self.assertEqual(units, "2")
        self.assertRegex(first, r"^(1:1[0-5]|1:0\d|0:\d\d)$")
        until("the time goes on", lambda: left()[1] != first)
        self.browser.shown(f"{css} tbody tr:last-child button")[0].click()
        until("it is looked up", lambda: "held 2 of 1001 in main" in self.form("Look up an operation").text)

    def test_sku_is_text_and_its_error_says_what_to_do(self):
        self.visit("stock/" + urllib.parse.quote("<img src=x onerror=alert(1)>", safe=""))
        until("the error is shown", lambda: "PUT /stock" in self.browser.text("#stock-view .problem"))
        self.assertEqual(self.browser.all("#stock-view img"), [])
        # The browser itself reports the 404 of each request.
        errors = self.browser.console_errors()
        self.assertTrue(errors and all("404" in entry["message"] for entry in errors), errors)
