// The start of the page: tabs by the hash, the chips of the servers, and the races that exist.
"use strict";

/** Loaded after the first paint, in this order: the visitor sees the page before the scripts run. */
const SCRIPTS = ["format", "charts", "run", "compare", "race", "strategies", "failures", "stock"];

const TITLES = { race: "Race", compare: "Compare", strategies: "Strategies", failures: "Failures", stock: "Stock" };

const lab = {
  /** The race that has not ended. */
  running: null,
  followed: new Map(),
  tabs: [],
  /** The newest race has the lowest rank. */
  newest: 0,

  /** Follows a race. It is shown in `tab`, or in the tab of its kind as soon as its plan is known. */
  follow(id, { tab, isRunning, rank = --this.newest }) {
    const race = follow(id, (changed, type) => this.changed(changed, type));
    race.rank = rank;
    // The events of a race that has ended look like those of one that runs, until the last one.
    race.isRunning = isRunning;
    if (isRunning) this.running = race;
    this.followed.set(id, race);
    if (tab) {
      tab.show(race);
      if (matchMedia("(max-width: 860px)").matches) tab.results.scrollIntoView({ block: "start" });
      if (document.activeElement === document.body) tab.bar.text.focus({ preventScroll: true });
    }
    this.redraw();
    return race;
  },

  /** Shows a race that runs, and opens its tab as soon as its plan is known. */
  open(id) {
    const race = this.followed.get(id) ?? this.follow(id, { isRunning: true });
    if (race.plan) location.hash = this.tabOf(race).name;
    else race.isWanted = true;
  },

  tabOf(race) {
    return this.tabs.find((tab) => (tab.name === "race") === isSingle(race));
  },

  changed(race, type) {
    if (race.end && this.running === race) this.running = null;
    if (type === "plan") {
      const tab = this.tabOf(race);
      if (!tab.race || race.rank <= tab.race.rank) {
        tab.restore(race.plan);
        tab.show(race);
      }
      if (race.isWanted) location.hash = tab.name;
    }
    for (const tab of this.tabs) if (tab.race === race) tab.show(race);
    if (type !== "tick") this.redraw();
    if (race.end || (race.isRunning && race.plan)) race.onknown?.();
  },

  redraw() {
    for (const tab of this.tabs) drawSoon(tab.draw);
  },
};

/** Follows the races that are not yet known, newest first, until each tab has one. */
async function restoreRaces(races) {
  const unknown = races.filter(({ id }) => !lab.followed.has(id));
  lab.newest -= unknown.length;
  const ranks = lab.newest;
  for (const [index, { id, state }] of unknown.entries()) {
    const race = lab.follow(id, { rank: ranks + index, isRunning: state === "running" });
    await new Promise((resolve) => {
      race.onknown = resolve;
    });
    if (index === 0 && race.plan && !location.hash) location.hash = lab.tabOf(race).name;
    if (lab.tabs.every((tab) => tab.race)) return;
  }
}

function showChips({ place, servers }) {
  const chip = (name, text, isSet, title) =>
    element("li", { class: isSet ? "chip" : "chip off", title }, element("i", { "aria-hidden": "true" }),
      element("span", { class: "hidden-text" }, `${name}: `), text);
  const missing = (server) => `${server.title} is not configured. Set ${server.variable} and start the lab again.`;
  byId("chips").replaceChildren(
    chip("Stock of a race", place, true, "Where the stock of a race is"),
    ...servers.map((server) => chip("Server", server.set ? server.title : `${server.title}: set ${server.variable}`, server.set, server.set ? "Configured" : missing(server))));
}

/** What to do after a race of one strategy. */
function nextStep(row) {
  const unsafe = row.tier === "unsafe";
  const single = lab.strategies.find(({ name }) => name === "single-sql");
  const button = unsafe && single
    ? element("button", { type: "button", class: "primary", onclick: () => raceStrategy("single-sql") }, "Race single-sql")
    : element("a", { class: "button primary", href: "#compare" }, "Compare all strategies");
  const text = unsafe && single ? "Next: the same orders, but one statement checks and takes the units." : "Next: the same orders with every strategy.";
  return element("div", { class: "next" }, element("span", {}, text), button);
}

/** Starts the race of one strategy, with the settings of the form. */
function raceStrategy(name) {
  const [tab] = lab.tabs;
  tab.edited = true;
  tab.choice.select(name);
  tab.changed();
  location.hash = "race";
  tab.form.requestSubmit();
}

/** Shows the tab that the hash names. */
function showTab() {
  const [, name, item] = /^#(\w+)(?:\/(.*))?$/.exec(location.hash) ?? [];
  const shown = name in TITLES ? name : "race";
  for (const tab of Object.keys(TITLES)) byId(`view-${tab}`).hidden = tab !== shown;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  document.title = `${TITLES[shown]} · Stocklock lab`;
  if (shown === "stock") lab.stock?.open(item && decoded(item));
  if (shown === "failures") lab.failures?.open(item);
}

/** A part of the hash. What is not encoded correctly is taken as it is. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function buildTabs(strategies, overview) {
  const settings = new Settings("race");
  const single = new RaceTab({
    name: "race",
    title: "Start the race",
    settings,
    choice: new StrategyChoice(strategies),
    view: new SingleView(nextStep),
  });
  const all = new RaceTab({ name: "compare", title: "Race all", settings: new Settings("compare"), view: new CompareView() });
  lab.tabs = [single, all];
  for (const tab of lab.tabs) tab.settings.limit(overview);
  byId("first-race").addEventListener("click", () => raceStrategy("no-lock"));
}

/** What the first visit shows before a race: the lost update as a picture. */
function showExample() {
  const picture = new Chart(drawEvidence);
  byId("example-picture").replaceChildren(picture.node);
  const deduction = (replica) => ({ replica, wrote: 9 });
  picture.update({ read: 10, read_version: 17, first: deduction("replica-1"), second: deduction("replica-2") });
}

async function startPage() {
  showExample();
  window.addEventListener("hashchange", showTab);
  showTab();
  try {
    const [{ strategies }, overview, { stories }] = await Promise.all(
      ["/strategies", "/lab/races", "/lab/failures"].map((path) => request("GET", path)));
    lab.strategies = strategies;
    showChips(overview);
    buildTabs(strategies, overview);
    buildStrategies(strategies, raceStrategy);
    lab.stock = new StockTab(strategies);
    lab.failures = new FailuresTab(stories);
    showTab();
    lab.redraw();
    await restoreRaces(overview.races);
  } catch (problem) {
    showProblem(byId("page-problem"), problem);
    return;
  }
  // Another page or a command may have started a race.
  document.addEventListener("visibilitychange", async () => {
    if (document.hidden || lab.running) return;
    try {
      await restoreRaces((await request("GET", "/lab/races")).races);
      showProblem(byId("page-problem"), null);
    } catch (problem) {
      showProblem(byId("page-problem"), problem);
    }
  });
}

function loadScripts() {
  for (const name of SCRIPTS) {
    const script = document.createElement("script");
    script.src = `/lab/page/${name}.js`;
    script.async = false;
    if (name === SCRIPTS.at(-1)) script.addEventListener("load", startPage);
    document.head.append(script);
  }
}

// When the second frame starts, the first one is painted.
requestAnimationFrame(() => requestAnimationFrame(loadScripts));
