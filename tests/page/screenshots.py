"""Makes the pictures of the README, docs/page-*.png, of the lab at PAGE_URL.

With a directory as argument, it makes pictures of every view there, to look at: light and dark, on a
phone and a desktop.
"""

import pathlib
import sys

from browser import DESKTOP, PHONE, VIEWS, Browser, Lab, lab_url, until

DOCS = pathlib.Path(__file__).parents[2] / "docs"
README = (1280, 960)
RACE = {"stock": 5000, "buyers": 100, "orders": 60}
SMALLER = {"stock": 2000, "buyers": 50, "orders": 50}
CONTENT = {"race": "#view-race .verdict", "compare": "#view-compare tbody tr",
           "strategies": "#strategy-cards article", "stock/1001": "#stock-view tbody tr"}


def show(browser, lab, view, scheme, size):
    browser.look(scheme, size)
    browser.visit(lab.url, view)
    until(f"{view} has its content", lambda: browser.shown(CONTENT[view]))
    browser.wait_for_frames()


def main():
    lab = Lab(lab_url())
    browser = Browser()
    try:
        lab.stop_all()
        lab.race("all", **SMALLER)
        lab.race(["no-lock"], **RACE)
        if len(sys.argv) > 1:
            directory = pathlib.Path(sys.argv[1])
            pictures = [(view, scheme, size, directory / f"{view.split('/')[0]}-{scheme}-{size[0]}.png")
                        for view in VIEWS for scheme in ("light", "dark") for size in (DESKTOP, PHONE)]
        else:
            pictures = [(view, scheme, README, DOCS / f"page-{view}-{scheme}.png")
                        for view in ("race", "compare") for scheme in ("light", "dark")]
        for view, scheme, size, path in pictures:
            show(browser, lab, view, scheme, size)
            is_readme = len(sys.argv) == 1
            if is_readme and view == "compare":
                browser.execute_script("document.getElementById('compare-results').scrollIntoView()")
            browser.picture(path, whole=not is_readme)
            print(path)
    finally:
        browser.quit()


main()
