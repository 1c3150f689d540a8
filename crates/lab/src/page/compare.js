// The comparison of all strategies of a race: progress, bars, a sortable table, and each run.
"use strict";

const COLUMNS = [
  { key: "strategy", title: "Strategy", text: true },
  { key: "requests_per_second", title: "Requests/s", format: formatNumber, best: "high" },
  { key: "p50_ms", title: "p50 ms", format: formatMs, wide: true },
  { key: "p99_ms", title: "p99 ms", format: formatMs },
  { key: "sold_units", title: "Units sold", format: formatNumber, wide: true },
  { key: "refused", title: "Refused", format: formatNumber, wide: true },
  { key: "failed", title: "Failed", format: formatNumber, wide: true },
  { key: "drift", title: "Level off by", format: formatNumber, wide: true, bad: true },
  { key: "oversold", title: "Oversold", format: formatNumber, bad: true },
  { key: "wall_seconds", title: "Seconds", format: (value) => value?.toFixed(1) ?? NONE, wide: true },
];

const BARS = [
  { key: "requests_per_second", title: "Requests per second", scale: "log scale, more is better", log: true },
  { key: "p99_ms", title: "p99 latency, ms", scale: "log scale, less is better", log: true },
  { key: "oversold", title: "Units oversold", scale: "linear scale, only 0 is correct", bad: true },
];

/** The view of a race of several strategies. `detail`: whether a run can be opened below the table. */
class CompareView {
  constructor({ detail = true } = {}) {
    this.progress = element("ol", { class: "progress-list" });
    this.skipped = element("ul", { class: "skipped" });
    this.said = element("p", { class: "dim", role: "status" });
    this.bars = BARS.map((bar) => ({ ...bar, chart: new Chart(drawBars) }));
    this.sort = { key: null, down: false };
    this.heads = COLUMNS.map((column) => this.head(column));
    this.body = element("tbody");
    this.chosen = null;
    this.detail = detail ? new RunView() : null;
    const figure = ({ title, scale, chart }) =>
      element("figure", { class: "card" }, element("figcaption", {}, element("h2", {}, title), element("span", {}, scale)), chart.node);
    this.results = element("div", { class: "stack" },
      element("div", { class: "bars" }, this.bars.map(figure)),
      element("section", { class: "card", "aria-label": "Table" },
        detail ? element("p", { class: "dim" }, "Choose a strategy to see its run below.") : null,
        element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results of all strategies" },
          element("table", {}, element("thead", {}, element("tr", {}, this.heads)), this.body))));
    const head = element("section", { class: "card", "aria-label": "Progress" }, this.progress, this.said, this.skipped);
    this.node = element("div", { class: "stack" }, head, this.results, this.detail?.node);
    this.draw = () => this.redraw();
  }

  head(column) {
    const sort = () => {
      const { key, down } = this.sort;
      this.sort = { key: column.key, down: key === column.key ? !down : column.best === "high" };
      drawSoon(this.draw);
    };
    const button = element("button", { type: "button", class: "sort", onclick: sort }, column.title);
    return element("th", { scope: "col", class: cellClass(column) }, button);
  }

  show(race) {
    this.race = race;
    drawSoon(this.draw);
  }

  redraw() {
    const { race } = this;
    const rows = race.runs.map((run) => run.row).filter(Boolean);
    this.showProgress(race, rows);
    this.results.hidden = rows.length === 0;
    for (const { key, title, log, bad, chart } of this.bars) {
      const values = rows.map((row) => ({
        name: row.strategy,
        tier: bad ? "unsafe" : row.tier,
        value: row[key],
        text: bad ? formatNumber(row[key]) : formatMs(row[key]),
        bad: bad && row[key] > 0,
      }));
      if (rows.length) chart.update({ title, rows: values, log });
    }
    this.showTable(rows);
    if (!this.detail) return;
    const current = race.end ? null : race.runs.at(-1);
    const chosen = race.runs.find((run) => run.start.strategy === this.chosen);
    const lost = race.runs.find((run) => run.row && (run.row.oversold > 0 || run.row.drift !== 0));
    const shown = chosen ?? current ?? lost ?? race.runs.at(-1);
    this.detail.node.hidden = !shown;
    if (shown) this.detail.show(race, shown);
  }

  showProgress(race, rows) {
    const items = race.plan.strategies.map((strategy, index) => {
      const run = race.runs[index];
      const state = run?.row ? verdictOf(run.row) : null;
      const text = state?.text ?? (run ? (race.end ? race.end.state : "running") : race.end ? "not run" : "waiting");
      const type = state?.tone ?? (run && !race.end ? "now" : "");
      return element("li", { class: type }, element("b", {}, strategy), element("span", {}, text));
    });
    const key = items.map((item) => item.className + item.textContent).join() + race.end?.state;
    if (this.shownItems === key) return;
    this.shownItems = key;
    this.progress.replaceChildren(...items);
    const skipped = race.plan.skipped.map(({ strategy, reason }) =>
      element("li", {}, element("b", {}, strategy), ` is not raced: ${reason}`));
    this.skipped.replaceChildren(...skipped);
    const all = race.plan.strategies.length;
    const lost = rows.filter((row) => row.oversold > 0 || row.drift !== 0).map((row) => row.strategy);
    const list = lost.join(", ").replace(/, ([^,]*)$/, " and $1");
    const oversold = lost.length ? `${list} lost stock; the others did not.` : "No strategy lost stock.";
    const progress = `${rows.length} of ${all} strategies have been raced.`;
    setText(this.said, race.end && rows.length ? oversold : progress);
  }

  showTable(rows) {
    const { key, down } = this.sort;
    this.heads.forEach((head, index) => {
      const sorted = COLUMNS[index].key === key;
      if (sorted) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const sorted = key ? [...rows].sort((a, b) => compareValues(a[key], b[key]) * (down ? -1 : 1)) : rows;
    const names = sorted.map((row) => row.strategy).join() + this.chosen;
    if (this.shownRows === names) return;
    this.shownRows = names;
    const focused = document.activeElement?.dataset?.strategy;
    this.body.replaceChildren(...sorted.map((row) => this.row(row)));
    if (focused) this.body.querySelector(`[data-strategy="${CSS.escape(focused)}"]`)?.focus();
  }

  row(row) {
    const { text, tone } = verdictOf(row);
    const choose = () => {
      this.chosen = row.strategy;
      this.redraw();
      this.detail.node.scrollIntoView({ block: "nearest" });
    };
    const name = this.detail
      ? element("button", { type: "button", class: "link", onclick: choose, "data-strategy": row.strategy, "aria-pressed": String(this.chosen === row.strategy), title: "Show this run" }, row.strategy)
      : element("a", { href: `#run-${row.strategy}` }, row.strategy);
    const verdict = element("span", { class: `word ${tone}` }, text);
    const first = element("th", { scope: "row" }, tierDot(row.tier), name, " ", verdict);
    const cells = COLUMNS.slice(1).map((column) => {
      const value = row[column.key];
      const red = column.bad && value ? " red" : "";
      return element("td", { class: cellClass(column) + red }, column.format(value));
    });
    return element("tr", {}, first, cells);
  }
}

const ENDED = {
  finished: "The race is over.",
  stopped: "The race was stopped. Only complete runs are compared.",
  failed: "The race failed.",
};

function cellClass({ text, wide }) {
  return [text ? "" : "number", wide ? "wide" : ""].join(" ").trim();
}

/** Numbers by value, texts by alphabet, unknown values last. */
function compareValues(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
