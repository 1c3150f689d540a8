// Starting, following and stopping races: the form, the stream of events, the tabs Race and Compare.
"use strict";

const ROUND_TRIPS = [0, 1, 2, 5, 10, 20, 50, 100];
const STANDARD = { stock: 5000, buyers: 100, orders: 60, quantity: 1, lines: 1, replicas: 2, rtt_ms: 0, guard: true, holds: false };
const PRESETS = [
  { name: "Standard", values: STANDARD },
  { name: "Flash sale", values: { ...STANDARD, stock: 100, buyers: 500, orders: 4 } },
  { name: "Distant servers", values: { ...STANDARD, stock: 500, buyers: 100, orders: 8, rtt_ms: 10 } },
];

/** The fields of a race, and the command that does the same. */
class Settings {
  constructor(prefix) {
    this.prefix = prefix;
    this.line = commandLine("the command");
    this.inputs = {
      stock: this.number("stock", "Stock", "units at the start"),
      buyers: this.number("buyers", "Buyers", "at the same time"),
      orders: this.number("orders", "Orders each", "one by one"),
      quantity: this.number("quantity", "Quantity", "units per line"),
      lines: this.number("lines", "Lines", "SKUs per order"),
    };
    this.sum = element("p", { class: "dim sum" });
    this.rtt = element("input", { type: "range", id: `${prefix}-rtt`, min: 0, max: ROUND_TRIPS.length - 1, step: 1 });
    this.rttText = element("output", { for: `${prefix}-rtt` });
    this.guard = element("input", { type: "checkbox", id: `${prefix}-guard` });
    this.holds = element("input", { type: "checkbox", id: `${prefix}-holds` });
    this.replicas = this.choice("replicas", "Replicas", [1, 2, 3, 4].map((count) => [String(count), String(count)]));
    this.rttHint = element("small", {}, this.rttText, " added");
    const preset = ({ name, values }) => {
      const set = () => {
        this.set(values);
        this.node.dispatchEvent(new Event("input", { bubbles: true }));
      };
      const button = element("button", { type: "button", class: "quiet", onclick: set }, name);
      return { button, isDistant: values.rtt_ms > 0 };
    };
    this.presets = PRESETS.map(preset);
    const fields = Object.values(this.inputs);
    this.node = element("div", { class: "settings" },
      element("div", { class: "presets", role: "group", "aria-label": "Examples" }, this.presets.map(({ button }) => button)),
      element("div", { class: "fields" }, fields.slice(0, 3).map((input) => input.parentNode), this.replicas),
      this.sum,
      element("details", {}, element("summary", {}, "More settings"),
        element("div", { class: "fields" }, fields.slice(3).map((input) => input.parentNode),
          element("div", { class: "field" },
            element("label", { for: `${prefix}-rtt` }, "Round trip"), this.rtt, this.rttHint),
          element("label", { class: "check", for: `${prefix}-guard` }, this.guard,
            element("span", {}, "Guard", element("small", {}, "The store refuses the write of a holder that lost its lock."))),
          element("label", { class: "check", for: `${prefix}-holds` }, this.holds,
            element("span", {}, "Holds", element("small", {}, "Each buyer holds the units, and then confirms."))))));
    this.set(STANDARD);
  }

  number(key, title, hint) {
    const input = element("input", { type: "number", name: key, min: 1, step: 1, required: true, inputmode: "numeric", autocomplete: "off" });
    element("label", { class: "field" }, element("span", {}, title), input, element("small", {}, hint));
    return input;
  }

  choice(key, title, options) {
    const radio = ([value, text]) => element("label", {},
      element("input", { type: "radio", name: `${this.prefix}-${key}`, value }), element("span", {}, text));
    return element("fieldset", { class: "field choice" }, element("legend", {}, title),
      element("div", { class: "segments" }, options.map(radio)));
  }

  set(values) {
    for (const [key, input] of Object.entries(this.inputs)) input.value = values[key];
    const nearest = ROUND_TRIPS.findLastIndex((ms) => ms <= values.rtt_ms);
    this.rtt.value = Math.max(nearest, 0);
    this.guard.checked = values.guard;
    this.holds.checked = values.holds;
    for (const radio of this.replicas.querySelectorAll("input")) radio.checked = radio.value === String(values.replicas);
    this.check();
  }

  values() {
    const number = (input) => (input.value === "" ? null : Number(input.value));
    const numbers = Object.entries(this.inputs).map(([key, input]) => [key, number(input)]);
    return {
      ...Object.fromEntries(numbers),
      replicas: Number(this.replicas.querySelector("input:checked")?.value ?? 1),
      rtt_ms: ROUND_TRIPS[this.rtt.value],
      guard: this.guard.checked,
      holds: this.holds.checked,
    };
  }

  /** Applies the limits of the lab: the browser refuses larger numbers and says which. */
  limit({ limits, servers, place }) {
    this.limits = limits;
    for (const key of ["stock", "buyers", "quantity", "lines"]) this.inputs[key].max = limits[key];
    for (const radio of this.replicas.querySelectorAll("input")) {
      radio.parentNode.hidden = Number(radio.value) > limits.replicas;
    }
    if (place.startsWith("sqlite") && !servers.some((server) => server.set)) this.disableDistance(servers);
    this.check();
  }

  /** Without a server, the lab refuses a race with a round trip. */
  disableDistance(servers) {
    const variables = ["DATABASE_URL", ...servers.map((server) => server.variable)].join(" or ");
    const reason = `Nothing to delay: SQLite is part of the process. Set ${variables} and start the lab again.`;
    const distant = this.presets.filter(({ isDistant }) => isDistant).map(({ button }) => button);
    for (const control of [this.rtt, ...distant]) Object.assign(control, { disabled: true, title: reason });
    this.rttHint.replaceChildren(reason);
  }

  check() {
    const { buyers, orders, rtt_ms: rtt } = this.values();
    const all = buyers * orders;
    const most = this.limits?.orders ?? Infinity;
    const tooMany = `At most ${formatNumber(most)} orders in total. Lower the buyers or the orders of each.`;
    this.inputs.orders.setCustomValidity(all > most ? tooMany : "");
    setText(this.sum, all > most ? tooMany : `${plural(all, "order")} in total`);
    this.sum.classList.toggle("red", all > most);
    setText(this.rttText, `${rtt} ms`);
    this.rtt.setAttribute("aria-valuetext", `${rtt} ms`);
  }

  /** Why this strategy cannot race with these values. `all`: only the one that can is raced. */
  refusal(strategy) {
    const { lines, holds } = this.values();
    if ((lines < 2 && !holds) || ["all", "group-commit"].includes(strategy)) return null;
    return { code: "race-refused", detail: "Orders of several lines and holds are made by group-commit: choose it." };
  }

  showCommand(strategies) {
    const values = this.values();
    const flag = (condition, text) => (condition ? ` ${text}` : "");
    this.line.set(`stocklock race --strategy ${strategies} --stock ${values.stock} --buyers ${values.buyers} --orders ${values.orders}`
      + flag(values.quantity !== 1, `--quantity ${values.quantity}`) + flag(values.lines !== 1, `--lines ${values.lines}`)
      + ` --replicas ${values.replicas}` + flag(values.rtt_ms, `--rtt ${values.rtt_ms}ms`)
      + flag(!values.guard, "--guard off") + flag(values.holds, "--holds"));
  }
}

/** Follows a race until its end: adds each event once, and calls `onEvent(race, type)`. */
function follow(id, onEvent) {
  const race = newRace(id);
  const source = new EventSource(`/lab/races/${encodeURIComponent(id)}/events`);
  let seen = 0;
  const add = (message) => {
    const number = Number(message.lastEventId);
    if (number && number <= seen) return;
    seen = number;
    race.problem = null;
    addEvent(race, message.type, JSON.parse(message.data));
    if (race.end) source.close();
    onEvent(race, message.type);
  };
  for (const type of ["plan", "start", "tick", "row", "end"]) source.addEventListener(type, add);
  source.onopen = () => {
    race.problem = null;
    onEvent(race, "open");
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      race.isGone = !race.end;
      race.end ??= { state: "failed", problem: "The lab does not have this race any more. Start it again." };
    } else {
      race.problem = "The connection to the lab is lost. The page tries again every few seconds.";
    }
    onEvent(race, "error");
  };
  return race;
}

/** The line above the results: state and stop, later race again and the reports. */
class RaceBar {
  constructor(again) {
    this.text = element("p", { class: "bar-text", role: "status", tabindex: "-1" });
    this.stop = element("button", { type: "button", class: "danger", onclick: () => this.stopRace() }, "Stop the race");
    this.again = element("button", { type: "button", class: "quiet", onclick: again }, "Race again");
    this.html = element("a", { class: "button quiet", download: true }, "HTML report");
    this.json = element("a", { class: "button quiet", download: true }, "JSON");
    this.problem = element("div", { role: "alert" });
    this.node = element("section", { class: "card race-bar", "aria-label": "State of the race" },
      this.text, element("div", { class: "buttons" }, this.stop, this.again, this.html, this.json), this.problem);
  }

  show(race) {
    this.race = race;
    const { end, plan } = race;
    const at = race.runs.at(-1)?.start.strategy;
    const running = !plan ? "The race is starting." : !at ? `Starting ${plural(plan.plan.replicas, "replica")}.` : `Racing ${at}.`;
    setText(this.text, end ? ENDED[end.state] ?? end.state : race.stopping ? "Stopping the race." : running);
    this.stop.hidden = Boolean(end);
    this.again.hidden = !end;
    const report = `/lab/races/${encodeURIComponent(race.id)}/report`;
    this.html.href = report;
    this.json.href = `${report}?format=json`;
    this.html.hidden = this.json.hidden = !end || Boolean(race.isGone) || race.runs.length === 0;
    const problem = end?.problem ?? race.problem;
    const key = `${race.id} ${problem}`;
    if (this.shown !== key) showProblem(this.problem, problem && { detail: problem });
    this.shown = key;
  }

  async stopRace() {
    const { race } = this;
    race.stopping = true;
    this.show(race);
    try {
      await request("POST", `/lab/races/${encodeURIComponent(race.id)}/stop`);
    } catch (problem) {
      race.stopping = false;
      this.show(race);
      showProblem(this.problem, problem);
    }
    // The button is hidden when the race has ended.
    this.text.focus({ preventScroll: true });
  }
}

/** What the tabs Race and Compare share: a form, a start, and the results of the newest race. */
class RaceTab {
  /** `choice`: the strategy to race; without it, all are raced. `view`: shows a race. */
  constructor({ name, title, settings, choice, view }) {
    Object.assign(this, { name, title, settings, choice, view });
    this.button = element("button", { type: "submit", class: "primary" }, title);
    this.problem = element("div", { role: "alert" });
    const submit = (event) => {
      event.preventDefault();
      this.start();
    };
    const edited = () => {
      this.edited = true;
      this.changed();
    };
    this.form = element("form", { onsubmit: submit, oninput: edited },
      choice?.node, settings.node, this.problem, this.button, settings.line.node);
    this.bar = new RaceBar(() => this.form.requestSubmit());
    this.draw = () => this.redraw();
    byId(`${name}-form`).replaceChildren(this.form);
    this.results = byId(`${name}-results`);
    this.changed();
  }

  /** What is raced: the name of a strategy, or all. */
  strategies() {
    return this.choice ? this.choice.value()?.name : "all";
  }

  /** The form has other values. */
  changed() {
    this.settings.check();
    this.settings.showCommand(this.strategies());
    const refusal = this.refusal();
    if (refusal?.detail !== this.refused) showProblem(this.problem, refusal);
    this.refused = refusal?.detail;
  }

  /** Why this race cannot be started. */
  refusal() {
    return this.choice?.refusal() ?? this.settings.refusal(this.strategies());
  }

  /** Sets the form to the plan of a race, unless the user has edited it. */
  restore({ plan }) {
    if (this.edited) return;
    this.settings.set(plan);
    this.choice?.select(plan.strategies[0]);
    this.changed();
  }

  async start() {
    if (lab.running || this.starting || this.refusal()) return;
    this.starting = true;
    showProblem(this.problem, null);
    const chosen = this.strategies();
    const strategies = chosen === "all" ? "all" : [chosen];
    try {
      const { id } = await request("POST", "/lab/races", { strategies, ...this.settings.values() });
      lab.follow(id, { tab: this, isRunning: true });
    } catch (problem) {
      const id = problem.code === "race-running" && problem.body?.id;
      const open = () => {
        showProblem(this.problem, null);
        lab.open(id);
      };
      const show = id && element("button", { type: "button", class: "link", onclick: open }, "Show it");
      showProblem(this.problem, problem, " ", show);
      this.form.scrollIntoView({ block: "nearest" });
    }
    this.starting = false;
  }

  /** Shows `race` from now on. */
  show(race) {
    if (this.race !== race) {
      this.race = race;
      if (this.name === "race") byId("hero").hidden = byId("example").hidden = true;
      this.results.append(this.bar.node, this.view.node);
    }
    drawSoon(this.draw);
  }

  redraw() {
    const { race } = this;
    const busy = lab.running && lab.running !== race;
    this.button.setAttribute("aria-disabled", String(Boolean(lab.running)));
    const isFirstVisit = this.name === "race" && !byId("hero").hidden;
    this.button.className = isFirstVisit ? "quiet" : "primary";
    setText(this.button, lab.running ? (busy ? "Another race is running" : "The race is running") : this.title);
    this.bar.again.disabled = Boolean(lab.running);
    if (!race) return;
    this.bar.show(race);
    this.view.node.hidden = !race.plan;
    if (race.plan) this.view.show(race);
  }
}

/** The list of strategies in the form of one race. */
class StrategyChoice {
  constructor(strategies) {
    this.rows = strategies.map((strategy) => {
      const radio = element("input", { type: "radio", name: "strategy", value: strategy.name });
      const tier = element("span", { class: "tier-name", title: TIERS[strategy.tier] }, strategy.tier);
      const missing = !strategy.available && element("small", {}, "not available here");
      const node = element("label", { class: "option" }, radio, tierDot(strategy.tier), element("span", {}, strategy.name, missing), tier);
      return { strategy, radio, node };
    });
    this.node = element("fieldset", { class: "strategies" },
      element("legend", {}, "Strategy"), this.rows.map((row) => row.node));
    this.select((strategies.find(({ name }) => name === "no-lock") ?? strategies[0])?.name);
  }

  value() {
    return this.rows.find((row) => row.radio.checked)?.strategy;
  }

  select(name) {
    for (const { strategy, radio } of this.rows) radio.checked = strategy.name === name;
  }

  /** Why the chosen strategy cannot be raced. */
  refusal() {
    const strategy = this.value();
    if (!strategy || strategy.available) return null;
    return { code: "strategy-unavailable", detail: `${strategy.name} cannot be raced here: ${strategy.reason}. Then start the lab again.` };
  }
}
