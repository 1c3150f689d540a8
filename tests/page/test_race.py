"""Races from the page: verdicts, comparison, stop, reload, and what is missing."""

from browser import LONG, RACE_SECONDS, PageTest, until

# Collects the labels of the button that starts a race.
LABELS = """
window.labels = [];
new MutationObserver(() => {
    const label = document.querySelector("#race-form [type=submit]")?.textContent;
    if (label && label !== labels.at(-1)) labels.push(label);
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


class Race(PageTest):
    def start(self, strategy, **values):
        """Starts a race of one strategy; returns its id."""
        self.visit()
        self.browser.choose("#race-form", "strategy", strategy)
        self.browser.choose("#race-form", "race-replicas", 2)
        self.browser.fill("#race-form", **values)
        return self.press_start()

    def press_start(self):
        before = {race["id"] for race in self.lab.races()}
        self.browser.button("Start the race").click()
        new = until("the race is listed", lambda: [race["id"] for race in self.lab.races() if race["id"] not in before])
        return new[0]

    def verdict(self):
        return until("there is a verdict", lambda: self.browser.shown("#view-race .verdict"), RACE_SECONDS)[0]

    def running(self):
        """The number of units sold, once some are."""
        return until("units are sold", lambda: self.browser.shown("#view-race .state.live") and self.browser.number("Sold"))

    def test_no_lock_red_number_is_that_of_the_audit(self):
        row = self.is_caught("no-lock")
        self.assertIsNotNone(row["evidence"]["read_version"])
        self.assertIn("read version", self.browser.text("#view-race [aria-label='Evidence of no-lock']"))

    def test_redis_get_set_wrote_the_same_level_twice(self):
        row = self.is_caught("redis-get-set")
        evidence = row["evidence"]
        self.assertIsNone(evidence["read_version"])
        self.assertEqual(evidence["first"]["wrote"], evidence["second"]["wrote"])
        text = self.browser.text("#view-race [aria-label='Evidence of redis-get-set']")
        self.assertIn("from the counter in Redis", text)
        self.assertIn(f"both wrote {evidence['first']['wrote']:,} as the level", text)

    def is_caught(self, strategy):
        """Races an unsafe strategy and checks what the page shows of it; returns the row."""
        race = self.start(strategy, stock=1000, buyers=50, orders=40)
        verdict = self.verdict()
        shown = self.browser.number("Oversold")
        (row,) = self.lab.rows(race)
        self.assertGreater(shown, 0)
        self.assertEqual(shown, row["oversold"])
        self.assertIn("bad", verdict.get_attribute("class"))
        self.assertIn(row["headline"], verdict.text)
        self.assertIn(f"{shown:,} units sold that never existed", verdict.text)
        self.assertIn("red", self.browser.shown("#view-race .big .value")[3].get_attribute("class"))
        self.assertTrue(self.browser.shown("#view-race .oversold-area"))
        audit = self.lab.get(f"/stock/{row['sku']}/audit")
        self.assertEqual(shown, sum(each["oversold"] for each in audit["warehouses"]))
        self.assertEqual(self.browser.number("Sold"), row["sold_units"])
        self.assertEqual(self.browser.number("Level says left"), row["left"])
        self.assertEqual(row["evidence"]["found"], "lost-update")
        until("the evidence is drawn", lambda: self.browser.shown("#view-race svg .step"))
        self.assertIn(row["evidence"]["first"]["operation"], self.browser.text("#view-race .operations"))
        return row

    def test_single_sql_shows_zero(self):
        race = self.start("single-sql", stock=1000, buyers=50, orders=40)
        verdict = self.verdict()
        self.assertEqual(self.browser.number("Oversold"), 0)
        self.assertEqual(self.browser.number("Sold"), 1000)
        self.assertEqual(self.browser.number("Level says left"), 0)
        self.assertIn("good", verdict.get_attribute("class"))
        self.assertEqual([row["oversold"] for row in self.lab.rows(race)], [0])

    def test_orders_of_lines_are_held_and_confirmed(self):
        self.visit()
        self.browser.one("#race-form summary").click()
        self.browser.choose("#race-form", "strategy", "single-sql")
        self.browser.fill("#race-form", stock=300, buyers=20, orders=20, lines=2)
        self.browser.one("#race-holds").click()
        races = self.lab.races()
        self.browser.button("Start the race").click()
        self.assertIn("made by group-commit", self.browser.text("#race-form .problem"))
        self.assertEqual(self.lab.races(), races)
        self.browser.choose("#race-form", "strategy", "group-commit")
        self.assertEqual(self.browser.shown("#race-form .problem"), [])
        command = self.browser.text("#race-form .command-text").split()
        self.assertEqual([word for word in ("--lines", "2", "--holds") if word not in command], [])
        race = self.press_start()
        verdict = self.verdict()
        (row,) = self.lab.rows(race)
        self.assertEqual(row["verdict"], "exact", row)
        shown = [self.browser.number(title) for title in ("In stock", "Sold", "Level says left", "Oversold")]
        self.assertEqual(shown, [600, 600, 0, 0])
        for each in row["skus"]:
            self.assertIn(f"{each['sku']}: 300 sold, 0 left", verdict.text)
        self.assertIn("2 lines each, all or nothing · held, then confirmed", self.browser.text("#view-race"))
        self.visit(f"stock/{row['sku']}")
        ledger = "#stock-view section[aria-label=Ledger]"
        until("the ledger is shown", lambda: self.browser.shown(f"{ledger} tbody tr"))
        # Confirmations leave the same units available, one after the other.
        self.assertNotIn("twice", self.browser.text(ledger))

    def test_command_follows_the_form(self):
        self.visit()
        self.browser.choose("#race-form", "strategy", "for-update")
        self.browser.choose("#race-form", "race-replicas", 2)
        self.browser.fill("#race-form", stock=77, buyers=3, orders=9)
        line = self.browser.text("#race-form .command-text")
        wanted = "stocklock race --strategy for-update --stock 77 --buyers 3 --orders 9 --replicas 2"
        self.assertEqual(" ".join(line.split()), wanted)
        self.browser.button("Distant servers").click()
        self.assertIn("--rtt 10ms", self.browser.text("#race-form .command-text"))
        self.browser.choose("#race-form", "strategy", "redis-lua")
        self.browser.button("Flash sale").click()
        line = " ".join(self.browser.text("#race-form .command-text").split())
        self.assertIn("--strategy redis-lua --stock 100 --buyers 500", line)

    def test_too_many_orders_are_refused_in_the_form(self):
        self.visit()
        races = self.lab.races()
        self.browser.fill("#race-form", buyers=1000, orders=1000)
        self.assertIn("orders in total", self.browser.text("#race-form .sum.red"))
        self.browser.button("Start the race").click()
        self.assertEqual(self.lab.races(), races)

    def test_stop_ends_the_race_halfway(self):
        race = self.start("for-update", **LONG)
        self.running()
        self.browser.button("Stop the race").click()
        self.assertEqual(self.lab.wait_for_end(race), "stopped")
        until("the page says so", lambda: "stopped" in self.browser.text("#view-race .bar-text"))
        self.assertEqual(self.lab.rows(race), [])
        self.assertEqual(self.browser.shown("#view-race .verdict"), [])
        self.assertTrue(self.browser.button("Start the race"))

    def test_reload_shows_the_running_race(self):
        # The page also follows this one, although it has ended.
        self.lab.race(["no-lock", "single-sql"])
        race = self.start("for-update", **LONG)
        before = self.running()
        observer = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LABELS})
        self.addCleanup(self.browser.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", observer)
        self.browser.get(self.lab.url + "/")
        self.assertGreaterEqual(until("it is shown again", self.running), before)
        until("the older race is shown", lambda: "over" in self.browser.one("#compare-results").get_attribute("textContent"))
        self.assertEqual(self.lab.state(race), "running")
        until("the button says so", lambda: self.browser.button("The race is running"))
        labels = self.browser.execute_script("return labels")
        self.assertEqual(labels.count("Start the race"), 1, labels)
        self.assertEqual(self.browser.one("#race-form [name=stock]").get_attribute("value"), str(LONG["stock"]))
        self.browser.button("Stop the race").click()
        self.assertEqual(self.lab.wait_for_end(race), "stopped")

    def test_page_that_was_open_does_not_start_a_second_race(self):
        self.visit()
        race = self.start("for-update", **LONG)
        self.running()
        self.browser.one("#race-form [type=submit]").click()
        self.assertEqual(self.browser.shown("#race-form .problem"), [])
        running = [each["id"] for each in self.lab.races() if each["state"] == "running"]
        self.assertEqual(running, [race])

    def test_race_of_another_page_is_shown_in_its_tab(self):
        self.visit()
        race = self.lab.start(["for-update", "single-sql"], **LONG)
        self.browser.button("Start the race").click()
        until("it says why", lambda: "race-running" in self.browser.text("#race-form .problem"))
        self.browser.button("Show it").click()
        until("its tab is open", lambda: self.browser.shown("#view-compare .state.live"))
        self.assertTrue(self.browser.current_url.endswith("#compare"))
        self.assertTrue(self.browser.button("The race is running"))
        self.browser.one("nav a[href='#race']").click()
        self.assertEqual(self.browser.shown("#race-form .problem"), [])
        until("the button says so", lambda: self.browser.button("Another race is running"))
        self.assertEqual([each["id"] for each in self.lab.races() if each["state"] == "running"], [race])
        # The browser itself reports the 409.
        errors = self.browser.console_errors()
        self.assertTrue(errors and all("409" in entry["message"] for entry in errors), errors)


class Compare(PageTest):
    def test_all_strategies_are_compared(self):
        self.visit("compare")
        self.browser.fill("#compare-form", stock=200, buyers=20, orders=15)
        self.browser.button("Race all").click()
        until("it runs", lambda: self.browser.shown("#view-compare .progress-list .now"))
        race = self.lab.races()[0]["id"]
        self.assertEqual(self.lab.wait_for_end(race), "finished")
        until("it is over", lambda: "over" in self.browser.text("#view-compare .bar-text"))
        rows = self.lab.rows(race)
        available = [each["name"] for each in self.lab.get("/strategies")["strategies"] if each["available"]]
        self.assertEqual([row["strategy"] for row in rows], available)
        self.assertEqual(self.names(), available)
        for row in rows:
            if row["tier"] != "unsafe":
                self.assertEqual((row["oversold"], row["verdict"]), (0, "exact"), row)
        self.assertEqual(len(self.browser.shown("#view-compare .bars svg")), 3)
        self.sort_by("Oversold", "oversold", rows)
        self.sort_by("p99 ms", "p99_ms", rows)
        self.browser.button("single-sql").click()
        until("its run is shown", lambda: self.browser.text("#view-compare .run-title") == "single-sql")

    def names(self):
        return [button.text for button in self.browser.shown("#view-compare tbody [data-strategy]")]

    def sort_by(self, title, key, rows):
        """Sorts by a column; the order of equal values does not matter."""
        self.browser.button(title).click()
        until(f"sorted by {title}", lambda: self.browser.text("#view-compare [aria-sort]").startswith(title))
        value = {row["strategy"]: row[key] for row in rows}
        values = [value[name] for name in self.names()]
        self.assertEqual(values, sorted(values))


class Bare(PageTest):
    """A lab without Redis and ZooKeeper that has not raced yet."""

    variable = "PAGE_URL_BARE"

    def test_1_missing_server_is_named_and_nothing_starts(self):
        self.visit()
        self.assertIn("set REDIS_URL", self.browser.text("#chips"))
        self.assertIn("set ZOOKEEPER_CONNECT", self.browser.text("#chips"))
        self.browser.choose("#race-form", "strategy", "redis-lock")
        self.assertIn("set REDIS_URL", self.browser.text("#race-form .problem"))
        self.browser.network()
        self.browser.button("Start the race").click()
        self.browser.wait_for_frames()
        sent = [event["params"]["request"]["method"] for event in self.browser.network()
                if event["method"] == "Network.requestWillBeSent"]
        self.assertEqual(sent, [])
        self.assertEqual(self.lab.races(), [])
        self.browser.one("#race-form summary").click()
        for control in (self.browser.button("Distant servers"), self.browser.one("#race-rtt")):
            self.assertFalse(control.is_enabled())
            self.assertIn("Set DATABASE_URL", control.get_attribute("title"))
        self.visit("strategies")
        self.assertIn("set REDIS_URL", self.browser.text("#strategy-cards .missing"))

    def test_2_first_visit_has_one_obvious_button(self):
        self.assertEqual(self.lab.races(), [], "it needs a lab that has not raced")
        self.visit()
        primary = [button.text for button in self.browser.shown("#view-race .primary")]
        self.assertEqual(primary, ["Race no-lock"])
        self.browser.fill("#race-form", stock=1000, buyers=50, orders=40)
        self.browser.button("Race no-lock").click()
        until("there is a verdict", lambda: self.browser.shown("#view-race .verdict"), RACE_SECONDS)
        self.assertEqual(self.browser.text("#view-race .run-title"), "no-lock")
        self.assertGreater(self.browser.number("Oversold"), 0)
        until("the race is over", lambda: "over" in self.browser.text("#view-race .bar-text"))
        until("the next one is offered", lambda: self.browser.button("Race single-sql")).click()
        until("it is of single-sql", lambda: self.browser.text("#view-race .run-title") == "single-sql", RACE_SECONDS)
        until("it has a verdict", lambda: self.browser.shown("#view-race .verdict"), RACE_SECONDS)
        self.assertEqual(self.browser.number("Oversold"), 0)
