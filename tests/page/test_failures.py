"""The tab Failures: a story is played forward and back, by mouse and keyboard, on a desktop and a phone."""

from browser import DESKTOP, PHONE, PageTest, until, violations
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


class Failures(PageTest):
    def rows(self):
        return self.browser.shown("#story-view .lanes tbody tr")

    def press(self, key):
        self.browser.switch_to.active_element.send_keys(key)

    def story(self, name):
        return next(story for story in self.lab.get("/lab/failures")["stories"] if story["name"] == name)

    def test_story_is_played_forward_and_back(self):
        story = self.story("lost-update")
        self.visit("failures/lost-update")
        self.assertEqual(self.rows(), [])
        for number, step in enumerate(story["naive"]["steps"], 1):
            self.browser.button("Forward").click()
            rows = self.rows()
            self.assertEqual(len(rows), number)
            self.assertIn(step["command"], rows[-1].text)
            self.assertIn("→ " + step["answer"], rows[-1].text)
            lane = rows[-1].find_element(By.CSS_SELECTOR, f"td[data-actor='{step['actor']}']")
            self.assertIn(step["command"], lane.text)
            self.assertEqual(self.browser.text("#story-view .sentence"), step["sentence"])
        self.assertIn(story["naive"]["finding"], self.browser.text("#story-view .verdict-line"))
        self.browser.button("Back").click()
        self.assertEqual(len(self.rows()), len(story["naive"]["steps"]) - 1)
        self.assertEqual(self.browser.shown("#story-view .verdict-line"), [])
        self.browser.button("The right way").click()
        self.assertEqual(self.rows(), [])
        self.press(Keys.END)
        self.assertIn(story["right"]["finding"], self.browser.text("#story-view .verdict-line"))

    def test_keyboard_plays_a_story_and_steps_back(self):
        story = self.story("mixed-reads")
        self.visit("failures/mixed-reads")
        last = len(story["naive"]["steps"])
        for key, count in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT, 1), (Keys.END, last),
                           (Keys.ARROW_RIGHT, last), (Keys.HOME, 0), (Keys.ARROW_LEFT, 0)):
            self.press(key)
            self.assertEqual(len(self.rows()), count)
        self.assertEqual(self.browser.text("#story-view .player .buttons .dim"), f"Step 0 of {last}")

    def test_every_story_opens_and_fits_a_phone(self):
        for size in (DESKTOP, PHONE):
            self.browser.look("light", size)
            self.visit("failures")
            for story in self.lab.get("/lab/failures")["stories"]:
                link = self.browser.one(f"#story-list a[href='#failures/{story['name']}']")
                self.browser.execute_script("arguments[0].click()", link)
                until("it is shown", lambda: self.browser.text("#story-view h2") == story["title"])
                for variant in ("naive", "right"):
                    self.browser.execute_script("lab.failures.choose(arguments[0]); lab.failures.go(99)", variant)
                    self.assertEqual(len(self.rows()), len(story[variant]["steps"]), story["name"])
                    self.assertLessEqual(self.browser.overflow(), 0, story["name"])

    def test_played_story_passes_axe(self):
        for scheme in ("light", "dark"):
            for size in (DESKTOP, PHONE):
                self.browser.look(scheme, size)
                self.visit("failures/deadlock-by-order")
                self.press(Keys.END)
                self.assertEqual(violations(self.browser), [], f"{scheme}, {size[0]} px")
