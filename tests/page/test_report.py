"""The report is downloaded from the page, and opens without network."""

import pathlib
import tempfile

from browser import DESKTOP, PHONE, PageTest, until, violations


class Report(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab.stop_all()
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": directory.name})

    def download(self, button, ending):
        """Presses a button of the page and waits for the file."""
        for file in self.directory.iterdir():
            file.unlink()
        self.browser.button(button).click()
        files = until(f"a file *.{ending}", lambda: list(self.directory.glob(f"*.{ending}")))
        return files[0]

    def offline(self, is_offline):
        self.browser.execute_cdp_cmd("Network.enable", {})
        self.browser.execute_cdp_cmd("Network.emulateNetworkConditions", {
            "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})

    def test_report_opens_without_network(self):
        for view, strategies in (("race", ["no-lock"]), ("compare", ["no-lock", "single-sql"])):
            with self.subTest(view=view):
                race = self.lab.race(strategies, stock=100, buyers=50, orders=10)
                self.visit(view)
                until("the result is shown", lambda: self.browser.button("HTML report"))
                until("it is of the race", lambda: race in self.browser.button("HTML report").get_attribute("href"))
                html = self.download("HTML report", "html")
                json_file = self.download_json()
                self.assertTrue(json_file)
                self.check(html, self.lab.rows(race))

    def download_json(self):
        self.keep = {file.name: file.read_bytes() for file in self.directory.iterdir()}
        text = self.download("JSON", "json").read_text()
        for name, content in self.keep.items():
            (self.directory / name).write_bytes(content)
        return text

    def check(self, html, rows):
        self.offline(True)
        self.addCleanup(self.offline, False)
        self.browser.network()
        for scheme, size in (("light", DESKTOP), ("dark", PHONE)):
            self.browser.look(scheme, size)
            self.browser.get("about:blank")
            self.browser.get(html.as_uri())
            until("its charts are drawn", lambda: self.browser.shown(".sold-line"))
            shown = [title.text for title in self.browser.shown(".run-title")]
            self.assertEqual(shown, [row["strategy"] for row in rows])
            for row, run in zip(rows, self.browser.shown("#results > [id^=run-]"), strict=True):
                self.assertIn(row["headline"], run.text)
            self.assertIn("stocklock race", self.browser.text("#command"))
            self.assertIn("core", self.browser.text("#facts"))
            self.assertEqual(violations(self.browser), [])
            self.assertLessEqual(self.browser.overflow(), 0)
        sent = [event["params"]["request"]["url"] for event in self.browser.network()
                if event["method"] == "Network.requestWillBeSent"]
        others = [url for url in sent if not url.startswith(("file:", "data:", "about:"))]
        self.assertEqual(others, [])
        self.offline(False)
