"""What the page costs: the first paint, its size, and the traffic while it is open."""

import collections

from browser import PageTest, until

FIRST_PAINT_MS = 100
PAGE_BYTES = 150_000
EVENTS_PER_SECOND = 10
BYTES_PER_SECOND = 20_000
# Long enough for 5 ticks per second to show their rate.
WINDOW_SECONDS = 4

PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LOADED = """
const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
return all.map((each) => [each.name, each.transferSize]);
"""


class Cost(PageTest):
    def test_first_paint_is_fast_and_the_page_is_small(self):
        paints = []
        # Without the cache, but with a browser process that exists: its start is no cost of the page.
        self.browser.execute_cdp_cmd("Network.enable", {})
        self.browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        self.visit()
        # Other processes use the same cores, so only the fastest load shows what the page itself costs.
        until(f"a load is painted within {FIRST_PAINT_MS} ms", lambda: self.load(paints) < FIRST_PAINT_MS)
        until("the race can be started", lambda: self.browser.shown("#race-form button"))
        sizes = dict(self.browser.execute_script(LOADED))
        own = {name: size for name, size in sizes.items() if "/lab/page/" in name or name.partition("#")[0] == self.lab.url + "/"}
        self.assertGreaterEqual(len(own), 10, own)
        self.assertLess(sum(own.values()), PAGE_BYTES, own)
        outside = [name for name in sizes if not name.startswith((self.lab.url, "data:"))]
        self.assertEqual(outside, [])

    def load(self, paints):
        """Loads the page again; returns the time to the first paint."""
        self.browser.refresh()
        paints.append(until("it is painted", lambda: self.browser.execute_script(PAINT)))
        return paints[-1]

    def test_open_page_costs_few_events_and_bytes(self):
        self.visit()
        self.browser.choose("#race-form", "strategy", "for-update")
        self.browser.fill("#race-form", stock=900_000, buyers=50, orders=2000)
        self.browser.button("Start the race").click()
        until("it runs", lambda: self.browser.shown("#view-race .state.live"))
        self.browser.network()
        seen = []

        def window_is_full():
            seen.extend(event for event in self.browser.network() if "timestamp" in event["params"])
            times = [event["params"]["timestamp"] for event in seen]
            return times and max(times) - min(times) >= WINDOW_SECONDS

        until("the window is full", window_is_full)
        times = [event["params"]["timestamp"] for event in seen]
        seconds = max(times) - min(times)
        counts = collections.Counter(event["method"] for event in seen)
        received = sum(event["params"]["dataLength"] for event in seen if event["method"] == "Network.dataReceived")
        self.assertGreater(counts["Network.eventSourceMessageReceived"], WINDOW_SECONDS)
        self.assertLessEqual(counts["Network.eventSourceMessageReceived"] / seconds, EVENTS_PER_SECOND)
        self.assertLessEqual(received / seconds, BYTES_PER_SECOND)
        # The page asks for nothing while it follows a race.
        self.assertEqual(counts["Network.requestWillBeSent"], 0)
