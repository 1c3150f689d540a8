// The tab Stock: find a SKU; its levels, audit and ledger; deduct and adjust by hand; look up an operation.
"use strict";

const LEDGER_PAGE = 25;
/** Open holds of a warehouse that are shown: the first to end. */
const HOLDS = 20;

function skuPath(sku) {
  return `/stock/${encodeURIComponent(sku)}`;
}

/** A word of a shell command. */
function shellWord(text) {
  return /^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function curlLine(path, body) {
  const json = shellWord(JSON.stringify(body));
  return `curl -X POST ${shellWord(location.origin + path)} -H 'Content-Type: application/json' -d ${json}`;
}

/** A table: `columns` are `[title, class]`, each row a list of texts or elements. */
function plainTable(name, columns, rows) {
  const cell = (content, index) => element("td", { class: columns[index][1] }, content);
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${name}` },
    element("table", {},
      element("thead", {}, element("tr", {}, columns.map(([title, type]) => element("th", { scope: "col", class: type }, title)))),
      element("tbody", {}, rows.map((row) => element("tr", { class: row.type }, row.map(cell))))));
}

/**
 * A form of a few fields. `fields`: `[key, title, attributes]`. `send` returns the answer: a line or a list
 * of lines. The curl line follows the input.
 */
function smallForm({ name, title, fields, send, curl }) {
  const line = commandLine(`the curl line of ${name}`);
  const answer = element("div", { role: "status" });
  const problem = element("div", { role: "alert" });
  const field = ([key, text, attributes, options]) => element("label", { class: "field" }, element("span", {}, text),
    options ? element("select", { name: key }, options) : element("input", { name: key, autocomplete: "off", ...attributes }));
  const values = () => Object.fromEntries(new FormData(form));
  const submit = async (event) => {
    event.preventDefault();
    showProblem(problem, null);
    try {
      const lines = [await send(values())].flat();
      answer.replaceChildren(...lines.map((line) => element("p", { class: "answer" }, line)));
    } catch (error) {
      answer.replaceChildren();
      showProblem(problem, error);
    }
  };
  const update = () => curl && line.set(curl(values()));
  const form = element("form", { class: "small-form", onsubmit: submit, oninput: update, "aria-label": name },
    element("h3", {}, name), element("div", { class: "fields" }, fields.map(field)),
    element("button", { type: "submit", class: "quiet" }, title), answer, problem, curl ? line.node : null);
  update();
  return form;
}

class StockTab {
  constructor(strategies) {
    this.strategies = strategies;
    this.view = byId("stock-view");
    this.list = element("div", { class: "levels" });
    this.input = element("input", { name: "sku", required: true, autocomplete: "off", placeholder: "1001", maxlength: 64 });
    const open = (event) => {
      event.preventDefault();
      const wanted = `#stock/${encodeURIComponent(this.input.value.trim())}`;
      if (location.hash === wanted) this.open(this.input.value.trim());
      else location.hash = wanted;
    };
    const find = element("form", { class: "find", onsubmit: open },
      element("label", { class: "field" }, element("span", {}, "SKU"), this.input),
      element("button", { type: "submit", class: "primary" }, "Show"));
    this.operation = smallForm({
      name: "Look up an operation",
      title: "Look up",
      fields: [["id", "Operation id", { required: true, placeholder: "0191b6a0-…" }]],
      send: ({ id }) => this.lookUp(id.trim()),
    });
    byId("stock-find").replaceChildren(element("h2", {}, "Find a SKU"), find, this.list, this.operation);
    this.showEmpty();
  }

  showEmpty() {
    const text = "Choose a SKU to see its levels, its ledger and its audit, and to sell or adjust it by hand.";
    this.view.replaceChildren(element("section", { class: "card" }, element("h2", {}, "Stock"), element("p", {}, text)));
  }

  /** The tab is shown: for a SKU, or for none. */
  async open(sku) {
    this.listLevels();
    if (!sku) {
      this.sku = null;
      return this.showEmpty();
    }
    this.sku = sku;
    this.input.value = sku;
    this.details = element("div", { class: "stack" });
    this.ledger = element("section", { class: "card", "aria-label": "Ledger" });
    const heading = element("h2", { class: "sku", tabindex: "-1" }, sku);
    const forms = element("section", { class: "card two", "aria-label": "Change it by hand" }, this.deductForm(sku), this.adjustForm(sku));
    this.view.replaceChildren(heading, this.details, forms, this.ledger);
    await this.refresh();
  }

  async listLevels(cursor) {
    try {
      const after = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
      const page = await request("GET", `/stock?limit=50${after}`);
      const item = (level) => element("a", { class: "level", href: `#stock/${encodeURIComponent(level.sku)}` },
        element("b", {}, level.sku), element("span", {}, `${formatNumber(level.available)} in ${level.warehouse}`));
      const more = page.next_cursor && element("button", { type: "button", class: "quiet", onclick: () => this.listLevels(page.next_cursor) }, "More");
      this.list.querySelector("button")?.remove();
      const items = page.levels.map(item);
      if (cursor) this.list.append(...items);
      else this.list.replaceChildren(...items);
      if (more) this.list.append(more);
    } catch (problem) {
      showProblem(this.list, problem);
    }
  }

  /** Reads the level, the audit and the newest movements again. */
  async refresh() {
    const { sku, details } = this;
    try {
      const [levels, audit, page] = await Promise.all([
        request("GET", skuPath(sku)),
        request("GET", `${skuPath(sku)}/audit`),
        request("GET", `${skuPath(sku)}/movements?limit=${LEDGER_PAGE}`),
      ]);
      const held = levels.warehouses.filter((level) => level.held > 0);
      const pages = await Promise.all(held.map(({ warehouse }) =>
        request("GET", `/holds?sku=${encodeURIComponent(sku)}&warehouse=${encodeURIComponent(warehouse)}&limit=${HOLDS}`)));
      if (this.details !== details) return;
      this.details.replaceChildren(levelsCard(levels), ...holdsCard(pages, (id) => this.showOperation(id)), auditCard(audit));
      this.movements = page.movements;
      this.showLedger(page.next_cursor);
    } catch (problem) {
      if (this.details === details) showProblem(this.details, problem);
    }
  }

  showLedger(next) {
    const { sku, details, movements } = this;
    const older = async () => {
      try {
        const page = await request("GET", `${skuPath(sku)}/movements?limit=${LEDGER_PAGE}&cursor=${encodeURIComponent(next)}`);
        // Another SKU is shown, or this one was read again.
        if (this.details !== details || this.movements !== movements) return;
        movements.push(...page.movements);
        this.showLedger(page.next_cursor);
      } catch (problem) {
        showProblem(place, problem);
      }
    };
    const place = element("div", { role: "alert" });
    const more = next && element("button", { type: "button", class: "quiet", onclick: older }, "Older movements");
    this.ledger.replaceChildren(element("h2", {}, "Ledger, newest first"),
      ledgerTable(this.movements, (id) => this.showOperation(id)), more ?? "", place);
  }

  showOperation(id) {
    this.operation.elements.id.value = id;
    this.operation.requestSubmit();
    this.operation.scrollIntoView({ block: "nearest" });
  }

  async lookUp(id) {
    const found = await request("GET", `/operations/${encodeURIComponent(id)}`);
    const lines = found.movements.map((movement) => {
      const by = movement.strategy ? ` by ${movement.strategy}` : movement.reason ? `: ${movement.reason}` : "";
      return `${movement.kind} ${unitsOf(movement)} of ${movement.sku} in ${movement.warehouse}${by}, at ${movement.created_at}, then ${formatNumber(movement.available_after)} available`;
    });
    return [`${found.status}.`, ...lines];
  }

  deductForm(sku) {
    const path = ({ strategy }) => `/stock/deduct${strategy ? `?strategy=${encodeURIComponent(strategy)}` : ""}`;
    const body = ({ quantity, warehouse }) => ({ sku, quantity: Number(quantity), ...(warehouse && warehouse !== "main" ? { warehouse } : {}) });
    const options = [element("option", { value: "" }, "configured"),
      ...this.strategies.map(({ name, available }) => element("option", { value: name, disabled: !available }, name))];
    return smallForm({
      name: "Deduct",
      title: "Deduct",
      fields: [
        ["quantity", "Quantity", { type: "number", min: 1, max: 10000, value: 1, required: true }],
        ["warehouse", "Warehouse", { value: "main", required: true, maxlength: 64 }],
        ["strategy", "Strategy", {}, options],
      ],
      send: async (values) => {
        const sale = await request("POST", path(values), body(values));
        await this.refresh();
        return `Took ${plural(sale.quantity, "unit")} with ${sale.strategy}. ${formatNumber(sale.remaining)} available. Operation ${sale.id}.`;
      },
      curl: (values) => curlLine(path(values), body(values)),
    });
  }

  adjustForm(sku) {
    const path = `${skuPath(sku)}/adjust`;
    const body = ({ delta, reason, warehouse }) => ({ delta: Number(delta), reason, ...(warehouse && warehouse !== "main" ? { warehouse } : {}) });
    return smallForm({
      name: "Adjust",
      title: "Adjust",
      fields: [
        ["delta", "Units (+ or −)", { type: "number", value: 10, required: true }],
        ["warehouse", "Warehouse", { value: "main", required: true, maxlength: 64 }],
        ["reason", "Reason", { value: "delivery", required: true, maxlength: 200 }],
      ],
      send: async (values) => {
        const change = await request("POST", path, body(values));
        await this.refresh();
        return `Changed by ${formatNumber(change.delta)}. ${formatNumber(change.remaining)} available. Operation ${change.id}.`;
      },
      curl: (values) => curlLine(path, body(values)),
    });
  }
}

function levelsCard({ warehouses }) {
  const columns = [["Warehouse"], ["On hand", "number"], ["Held", "number wide"], ["Available", "number"], ["Version", "number"]];
  const rows = warehouses.map((level) => [level.warehouse, formatNumber(level.on_hand), formatNumber(level.held), formatNumber(level.available), formatNumber(level.version)]);
  return element("section", { class: "card", "aria-label": "Levels" }, element("h2", {}, "Levels"), plainTable("Levels", columns, rows));
}

/** The units of a movement. Those of a hold stay in the warehouse. */
function unitsOf({ delta, held_delta: held }) {
  return formatNumber(delta || held || 0);
}

/** The time that a hold has left: it counts down while it is shown. */
function timeLeft({ expires_at: end }) {
  const text = element("span", {});
  const show = () => {
    const seconds = Math.ceil((Date.parse(end) - Date.now()) / 1000);
    setText(text, end == null ? "until it ends" : seconds > 0 ? formatDuration(seconds) : "expired");
    if (end != null && seconds > 0) setTimeout(() => text.isConnected && show(), 1000);
  };
  show();
  return text;
}

/** `90` is `1:30`. */
function formatDuration(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
}

/** The open holds, if there are any. */
function holdsCard(pages, onOperation) {
  const holds = pages.flatMap((page) => page.holds);
  if (holds.length === 0) return [];
  const columns = [["Warehouse"], ["Units", "number"], ["Time left", "number"], ["Hold"]];
  const open = ({ id }) => element("button", { type: "button", class: "link", "aria-label": `Look up ${id}`, onclick: () => onOperation(id) }, shortId(id));
  const rows = holds.map((hold) => [hold.warehouse, formatNumber(hold.quantity), timeLeft(hold), open(hold)]);
  const more = pages.some((page) => page.next_cursor) && element("p", { class: "dim" }, "There are more, which end later.");
  return [element("section", { class: "card", "aria-label": "Open holds" }, element("h2", {}, "Open holds, the first to end first"), plainTable("Open holds", columns, rows), more)];
}

function auditCard({ warehouses }) {
  const audits = warehouses.map((audit) => {
    const drift = audit.drift > 0
      ? `The level shows ${plural(audit.drift, "unit")} too many: it missed sales.`
      : audit.drift < 0 ? `The level shows ${plural(-audit.drift, "unit")} too few.` : "Level and ledger agree.";
    const oversold = audit.oversold ? ` ${plural(audit.oversold, "unit")} were sold that never existed.` : "";
    const sums = `Received ${formatNumber(audit.received)}, sold ${formatNumber(audit.sold)}, on hand ${formatNumber(audit.on_hand)}.`;
    const tone = audit.oversold || audit.drift ? "bad" : "good";
    return element("div", { class: `verdict-line ${tone}` },
      element("p", { class: "headline" }, warehouses.length > 1 ? `${audit.warehouse}: ` : "", drift + oversold),
      element("p", { class: "dim" }, sums));
  });
  return element("section", { class: "card", "aria-label": "Audit" }, element("h2", {}, "Audit"), audits);
}

/**
 * How each movement that is part of a lost update shows it: two movements read the same version, or two sales
 * that read none wrote the same level. Between those, only such sales may lie, and no version may be missing:
 * any other change can make the same level correct, and the sale of held units leaves what is available.
 */
function lostUpdates(movements) {
  const signs = new Map();
  const earliest = new Map();
  const oldestFirst = [...movements].sort((a, b) => compareValues(a.warehouse, b.warehouse) || a.level_version - b.level_version);
  let [before, stretch] = [null, 0];
  for (const movement of oldestFirst) {
    const { warehouse, kind, read_version: read, level_version: version } = movement;
    const isNext = before?.warehouse === warehouse && before.level_version + 1 === version;
    const readNone = kind === "deducted" && read == null && !movement.held_delta;
    if (!isNext || !readNone) stretch += 1;
    before = movement;
    if (!readNone && read == null) continue;
    const [key, sign] = readNone ? [`wrote ${stretch} ${movement.available_after}`, "written twice"] : [`read ${warehouse} ${read}`, "read twice"];
    const earlier = earliest.get(key);
    if (earlier) for (const each of [earlier, movement]) signs.set(each, sign);
    else earliest.set(key, movement);
  }
  return signs;
}

/** The ledger. Sales of a lost update are marked: one of them is missing from the level. */
function ledgerTable(movements, onOperation) {
  const signs = lostUpdates(movements);
  const columns = [["Time (UTC)"], ["Kind", "wide"], ["Units", "number"], ["Left", "number"], ["Read version", "number wide"], ["Strategy or reason", "wide"], ["Operation"]];
  const rows = movements.map((movement) => {
    const sign = signs.get(movement);
    const marked = (value, own) => formatNumber(value) + (sign === own ? ` (${own})` : "");
    const open = element("button", { type: "button", class: "link", "aria-label": `Look up ${movement.id}`, onclick: () => onOperation(movement.id) }, shortId(movement.id));
    const row = [timeOfDay(movement.created_at), movement.kind, unitsOf(movement), marked(movement.available_after, "written twice"), marked(movement.read_version, "read twice"), movement.strategy ?? movement.reason ?? "", open];
    row.type = sign ? "lost" : null;
    return row;
  });
  return plainTable("Ledger", columns, rows);
}
