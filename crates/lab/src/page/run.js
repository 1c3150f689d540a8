// A race as its events describe it, and the view of one run: counters, chart, verdict, evidence.
//
// The page adds the events as they arrive. The report has them all from the start.
"use strict";

const MAX_POINTS = 600;

function newRace(id) {
  return { id, plan: null, runs: [], end: null };
}

/** Adds an event of the stream to a race. */
function addEvent(race, type, data) {
  const run = race.runs.at(-1);
  if (type === "plan") race.plan = data;
  if (type === "start") race.runs.push({ start: data, ticks: [], row: null });
  if (type === "tick" && run) {
    run.ticks.push(data);
    // Half the points are enough for a chart of the same width.
    if (run.ticks.length > MAX_POINTS) run.ticks = run.ticks.filter((_, index) => index % 2 === 1);
  }
  if (type === "row" && run) run.row = data;
  if (type === "end") race.end = data;
}

/** Whether a race is of one strategy. Such a race is shown by the tab Race, the others by Compare. */
function isSingle(race) {
  return race.plan.plan.strategies !== "all" && race.plan.strategies.length === 1;
}

/** The configuration in words. */
function planText({ plan, place }) {
  const parts = [
    `${formatNumber(plan.stock)} in stock${plan.lines > 1 ? " of each SKU" : ""}`,
    `${plural(plan.buyers, "buyer")} × ${plural(plan.orders, "order")}`,
    plan.quantity === 1 ? null : `${formatNumber(plan.quantity)} units each`,
    plan.lines > 1 ? `${plan.lines} lines each, all or nothing` : null,
    plan.holds ? "held, then confirmed" : null,
    plural(plan.replicas, "replica"),
    plan.rtt_ms ? `${formatMs(plan.rtt_ms)} ms round trip added` : null,
    plan.guard ? null : "guard off",
    place,
  ];
  return parts.filter(Boolean).join(" · ");
}

function total(counts) {
  return Object.values(counts ?? {}).reduce((sum, count) => sum + count, 0);
}

/** One of the four large numbers. */
function bigNumber(name) {
  const value = element("dd", { class: "value" }, NONE);
  const note = element("dd", { class: "note" });
  const node = element("div", {}, element("dt", {}, name), value, note);
  const set = (text, more, { red = false, redNote = false } = {}) => {
    setText(value, text);
    setText(note, more);
    value.classList.toggle("red", red);
    note.classList.toggle("red", redNote);
  };
  return { node, set };
}

/** A figure with a small line below it. */
function smallFigure(name) {
  const value = element("b", {}, NONE);
  const chart = new Chart(drawSparkline);
  const node = element("div", {}, element("h3", {}, name), value, chart.node);
  const set = (text, ...series) => {
    setText(value, text);
    chart.update({ name, series });
  };
  return { node, set };
}

/** The view of one run. `next(row)`: an element below the verdict, as soon as the race has ended. */
class RunView {
  constructor({ next } = {}) {
    this.next = next;
    this.title = element("h2", { class: "run-title", tabindex: "-1" });
    this.state = element("span", { class: "state" });
    this.detail = element("p", { class: "dim" });
    this.progress = element("progress", { max: 1, value: 0, "aria-label": "Orders answered" });
    this.numbers = {
      stock: bigNumber("In stock"),
      sold: bigNumber("Sold"),
      left: bigNumber("Level says left"),
      oversold: bigNumber("Oversold"),
    };
    this.chart = new Chart(drawStock);
    this.figures = {
      rate: smallFigure("Requests per second"),
      latency: smallFigure("Latency p50 / p99, ms"),
      refused: smallFigure("Refused (409)"),
      waits: smallFigure("Waiting for locks, ms per s"),
    };
    this.verdict = element("div", { role: "status", "aria-atomic": "false" });
    this.evidence = element("div");
    const nodes = (group) => Object.values(group).map((each) => each.node);
    const head = element("header", { class: "run-head" }, this.title, this.state);
    this.live = element("section", { class: "card" }, head, this.detail, this.progress,
      element("dl", { class: "big" }, nodes(this.numbers)), this.chart.node,
      element("div", { class: "small" }, nodes(this.figures)));
    this.node = element("div", { class: "stack" }, this.live, this.verdict, this.evidence);
    this.draw = () => this.redraw();
  }

  /** Shows this run of this race, now and when it is called again. */
  show(race, run) {
    Object.assign(this, { race, run });
    drawSoon(this.draw);
  }

  redraw() {
    const { race, run } = this;
    const { start, row, ticks } = run;
    const last = ticks.at(-1);
    const ms = row ? row.wall_seconds * 1000 : last?.ms ?? 0;
    if (this.shownRun !== run) {
      this.shownRun = run;
      this.shownRow = undefined;
      this.title.replaceChildren(tierDot(start.tier), start.strategy);
      this.live.setAttribute("aria-label", `Run of ${start.strategy}`);
      setText(this.detail, planText(race.plan));
    }
    const state = row ? "finished" : race.end ? race.end.state : "running";
    setText(this.state, `${state}, ${formatSeconds(ms)}`);
    this.state.classList.toggle("live", state === "running");

    const sold = row ? row.sold_units : last?.sold ?? 0;
    const left = row ? row.left : last ? last.left : start.stock;
    const [refused, failed] = [row ? row.refused : last?.refused ?? 0, row ? row.failed : last?.failed ?? 0];
    const orders = sold / start.quantity;
    this.progress.value = row ? 1 : Math.min((orders + refused + failed) / start.orders, 1);
    this.showNumbers(run, { sold, left, failed });

    const points = [{ ms: 0, sold: 0, left: start.stock }, ...ticks];
    if (row) points.push({ ms: Math.max(ms, last?.ms ?? 0), sold, left });
    this.chart.update({ stock: start.stock, points, done: Boolean(row || race.end) });

    const column = (name) => ticks.map((tick) => tick[name]);
    const [p50, p99] = [row ? row.p50_ms : last?.p50_ms, row ? row.p99_ms : last?.p99_ms];
    this.figures.rate.set(formatNumber(row ? row.requests_per_second : last?.rate), column("rate"));
    this.figures.latency.set(`${formatMs(p50)} / ${formatMs(p99)}`, column("p99_ms"), column("p50_ms"));
    this.figures.refused.set(formatNumber(refused), column("refused"));
    const waits = column("lock_waits_ms");
    this.figures.waits.node.hidden = waits.every((value) => value == null);
    this.figures.waits.set(formatMs(waits.at(-1)), waits);
    if (this.shownRow !== row) {
      this.shownRow = row;
      this.hasNext = false;
      this.verdict.replaceChildren(...(row ? [verdictCard(row)] : []));
      this.evidence.replaceChildren(...(row?.evidence ? [evidenceCard(row)] : []));
    }
    // Until the race has ended, the lab refuses the next one.
    if (row && race.end && !this.hasNext) {
      this.hasNext = true;
      if (this.next) this.verdict.firstChild.append(this.next(row));
    }
  }

  showNumbers({ start, row }, { sold, left, failed }) {
    const oversold = row ? row.oversold : Math.max(sold - start.stock, 0);
    const { numbers } = this;
    numbers.stock.set(formatNumber(start.stock), "before the race");
    const more = failed ? `, ${formatNumber(failed)} failed` : "";
    numbers.sold.set(formatNumber(sold), `${plural(start.orders, "order")}${more}`, { redNote: failed > 0 });
    const wrong = Boolean(row?.drift);
    const note = wrong ? `off by ${formatNumber(Math.abs(row.drift))}` : `stock − sold: ${formatNumber(start.stock - sold)}`;
    numbers.left.set(formatNumber(left), note, { redNote: wrong });
    const never = oversold ? "units that never existed" : row ? "every unit sold existed" : "so far";
    numbers.oversold.set(formatNumber(oversold), never, { red: oversold > 0 });
  }
}

/** A finding starts with its count. The ids in it are no numbers. */
function withGroupedCount(finding) {
  return finding.replace(/^\d+/, (count) => formatNumber(Number(count)));
}

/** The verdict in words, with everything that contradicts it. */
function verdictCard(row) {
  const { text, tone } = verdictOf(row);
  const list = (items) => items?.length > 0 && element("ul", {}, items.map((item) => element("li", {}, item)));
  const counts = (name, counts) => {
    if (!total(counts)) return null;
    const reasons = Object.entries(counts).map(([reason, count]) => `${formatNumber(count)} ${reason}`);
    return `${name}: ${reasons.join(", ")}`;
  };
  const locks = [counts("Lost locks", row.lost_locks), counts("Refused writes", row.refused_writes)];
  return element("section", { class: `card verdict ${tone}`, "aria-label": `Verdict on ${row.strategy}` },
    element("span", { class: "badge" }, text),
    element("p", { class: "headline" }, row.headline),
    element("p", {}, row.sentence),
    list(row.findings?.map(withGroupedCount)),
    list(row.skus?.map(({ sku, ledger_sold: sold, left }) => `${sku}: ${formatNumber(sold)} sold, ${formatNumber(left)} left`)),
    list([...(row.remarks ?? []), ...locks.filter(Boolean)]),
    row.evidence ? null : element("p", { class: "dim" }, withCode(row.why ?? "")));
}

function evidenceCard(row) {
  const { evidence } = row;
  if (evidence.found !== "lost-update") {
    const text = `Units were lost, but no two of ${plural(evidence.sales, "sale")} read the same version or wrote the same level.`;
    return element("section", { class: "card", "aria-label": `Evidence of ${row.strategy}` }, element("h2", {}, "Evidence"), element("p", {}, text),
      element("p", { class: "dim" }, withCode(row.why ?? "")));
  }
  const { first, second, lost_updates: lost } = evidence;
  const picture = new Chart(drawEvidence);
  picture.update(evidence);
  const [version, wrote] = [evidence.read_version, first.wrote];
  const cause = version == null
    ? `Both deductions read ${plural(evidence.read, "unit")} from the counter in Redis, and both wrote ${formatNumber(wrote)} as the level. No units were added between them.`
    : `Both deductions read version ${formatNumber(version)} of the level.`;
  const both = `${cause} The second write replaced the first one, so two sales were made and the level shows one.`;
  const count = lost > 1 ? ` The ledger has ${formatNumber(lost)} such lost updates; this is the first.` : "";
  return element("section", { class: "card", "aria-label": `Evidence of ${row.strategy}` },
    element("h2", {}, "Evidence: the first lost update"), picture.node,
    element("p", {}, both + count),
    element("p", { class: "dim" }, withCode(row.why ?? "")),
    element("p", { class: "dim operations" }, "Operations: ", element("code", {}, first.operation), " and ",
      element("code", {}, second.operation), ", SKU ", element("code", {}, row.sku), "."));
}

/** The view of a race of one strategy. */
class SingleView {
  constructor(next) {
    this.run = new RunView({ next });
    this.node = this.run.node;
  }

  show(race) {
    const [run] = race.runs;
    this.node.hidden = !run;
    if (run) this.run.show(race, run);
  }
}
