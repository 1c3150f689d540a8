"""A headless Chromium, the lab that it visits, and waits with a bound.

PAGE_URL is a running lab. PAGE_URL_BARE is a second one, without Redis and ZooKeeper, that has not
raced yet. Both are started by the caller.
"""

import base64
import json
import os
import shutil
import time
import unittest
import urllib.error
import urllib.request

from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

# The longest wait for anything on a page, and for the end of a race of all strategies.
LIMIT_SECONDS = 60
RACE_SECONDS = 240
PAUSE_SECONDS = 0.05
# How often chromedriver is started if it exits at once.
MAX_STARTS = 5

DESKTOP = (1280, 900)
PHONE = (360, 800)
VIEWS = ("race", "compare", "strategies", "failures", "stock/1001")
# What axe-core checks.
WCAG_AA = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
# Orders that every strategy settles in about a second.
SMALL = {"stock": 200, "buyers": 20, "orders": 15, "quantity": 1, "replicas": 2, "rtt_ms": 0, "guard": True}
# More orders than a machine settles before the test has stopped them.
LONG = {"stock": 900_000, "buyers": 50, "orders": 2000}


def lab_url(name="PAGE_URL"):
    url = os.environ.get(name)
    if not url:
        raise SystemExit(f"{name} is not set: start a lab, and set it to its address")
    return url.rstrip("/")


def until(what, condition, limit=LIMIT_SECONDS):
    """Polls until `condition()` is true, and returns its value."""
    end = time.monotonic() + limit
    while True:
        try:
            value = condition()
        except StaleElementReferenceException:
            value = None
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {limit} s still not: {what}")
        time.sleep(PAUSE_SECONDS)


class Lab:
    """The API of a lab."""

    def __init__(self, url):
        self.url = url

    def request(self, method, path, body=None, key=""):
        """Returns the status and the body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path):
        status, body = self.request("GET", path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def races(self):
        return self.get("/lab/races")["races"]

    def state(self, race):
        return self.get(f"/lab/races/{race}")["state"]

    def wait_for_end(self, race):
        """Waits until the race has ended; returns its state."""
        until(f"the race {race} has ended", lambda: self.state(race) != "running", RACE_SECONDS)
        return self.state(race)

    def start(self, strategies, **values):
        """Starts a race; returns its id."""
        status, body = self.request("POST", "/lab/races", {"strategies": strategies, **SMALL, **values})
        assert status == 201, (status, body)
        return json.loads(body)["id"]

    def race(self, strategies, **values):
        """Runs a race to its end; returns its id."""
        race = self.start(strategies, **values)
        state = self.wait_for_end(race)
        assert state == "finished", state
        return race

    def stop_all(self):
        """Stops the race that runs, if a test has left one."""
        for race in self.races():
            if race["state"] == "running":
                self.request("POST", f"/lab/races/{race['id']}/stop")
                self.wait_for_end(race["id"])

    def events(self, race):
        """All events of a race that has ended, as (type, data)."""
        status, text = self.request("GET", f"/lab/races/{race}/events")
        assert status == 200, (status, text)
        events = []
        for block in text.replace("\r\n", "\n").split("\n\n"):
            lines = [line.partition(":") for line in block.split("\n")]
            fields = {name: value.removeprefix(" ") for name, _, value in lines if name}
            if "data" in fields:
                events.append((fields.get("event"), json.loads(fields["data"])))
        return events

    def rows(self, race):
        return [data for kind, data in self.events(race) if kind == "row"]


class Browser(webdriver.Chrome):
    """Chromium with the helpers of the tests."""

    def __init__(self):
        options = Options()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--disable-sync", "--lang=en"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # Each service draws a free port. Several tests run at once, so another process can take the port before
        # chromedriver listens on it, and chromedriver then exits with status 1.
        for start in range(1, MAX_STARTS + 1):
            try:
                super().__init__(options=options, service=Service(shutil.which("chromedriver")))
                break
            except WebDriverException as error:
                port_is_taken = (error.msg or "").endswith("unexpectedly exited. Status code was: 1")
                if not port_is_taken or start == MAX_STARTS:
                    raise
        self.set_script_timeout(LIMIT_SECONDS)

    def look(self, scheme="light", size=DESKTOP, motion="no-preference"):
        """Sets colour scheme, size and motion."""
        width, height = size
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion}]})
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE})

    def visit(self, base, view="race"):
        """Opens a view in a fresh document and waits until it is filled."""
        self.get("about:blank")
        self.get(f"{base}/#{view}")
        filled = {"race": "#race-form button", "compare": "#compare-form button",
                  "strategies": "#strategy-cards article", "failures": "#story-view .player",
                  "stock": "#stock-find .level"}
        until(f"{view} is filled", lambda: self.shown(filled[view.split("/")[0]]))

    def all(self, css):
        return self.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        return self.find_element(By.CSS_SELECTOR, css)

    def shown(self, css):
        """The elements that are displayed."""
        return [element for element in self.all(css) if element.is_displayed()]

    def text(self, css):
        elements = self.shown(css)
        return elements[0].text if elements else ""

    def button(self, text):
        """The displayed button or link with this text."""
        named = [element for element in self.shown("button, a.button") if element.text == text]
        return named[0] if named else None

    def fill(self, form, **values):
        """Sets fields of a form to numbers or texts."""
        for name, value in values.items():
            field = self.one(f"{form} [name='{name}']")
            field.clear()
            field.send_keys(str(value))

    def choose(self, form, name, value):
        """Chooses a radio button; the segments are invisible, so the script clicks."""
        radio = self.one(f"{form} [name='{name}'][value='{value}']")
        self.execute_script("arguments[0].click()", radio)

    def number(self, title):
        """One of the four large numbers of the shown run."""
        for group in self.shown(".big > div"):
            if group.find_element(By.TAG_NAME, "dt").text == title:
                return int(group.find_element(By.CLASS_NAME, "value").text.replace(",", "").replace("−", "-"))
        raise AssertionError(f"no number {title}")

    def wait_for_frames(self):
        """Waits until everything that was asked for is drawn: two frames."""
        self.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")

    def overflow(self):
        """How many pixels wider than the window the document is."""
        return self.execute_script("return document.documentElement.scrollWidth - window.innerWidth")

    def console_errors(self):
        """The messages of the console since the last call, except debug output."""
        return [entry for entry in self.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def network(self):
        """The events of the network since the last call."""
        return [json.loads(entry["message"])["message"] for entry in self.get_log("performance")]

    def picture(self, path, whole=True):
        """Writes a PNG of the document, or of the window."""
        width, height = self.execute_script(
            "return [window.innerWidth, document.documentElement.scrollHeight]")
        options = {"captureBeyondViewport": whole}
        if whole:
            options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


def violations(browser):
    """The violations of the shown document, as texts."""
    found = Axe().run(browser, options=WCAG_AA)["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


class PageTest(unittest.TestCase):
    """A test with a browser on a lab. The console must stay empty."""

    variable = "PAGE_URL"

    @classmethod
    def setUpClass(cls):
        cls.lab = Lab(lab_url(cls.variable))
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        self.lab.stop_all()
        self.browser.look()
        self.browser.console_errors()
        self.addCleanup(self.lab.stop_all)

    def tearDown(self):
        self.assertEqual(self.browser.console_errors(), [])

    def visit(self, view="race"):
        self.browser.visit(self.lab.url, view)
