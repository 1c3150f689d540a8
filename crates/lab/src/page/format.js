// Numbers, times and plurals as text; building elements; requests with problems; one draw per frame.
//
// Texts from the service become text nodes and attributes, never markup.
"use strict";

const NONE = "–";
const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shortNumber = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

function formatNumber(value) {
  return value == null ? NONE : wholeNumber.format(value).replace("-", "−");
}

/** Milliseconds: two digits below 10, whole numbers above. */
function formatMs(value) {
  if (value == null) return NONE;
  return Math.abs(value) < 10 ? shortNumber.format(value) : formatNumber(value);
}

function formatSeconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`;
}

/** "1 unit", "2 units". */
function plural(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** The time of day of an RFC 3339 time, with milliseconds, in UTC. */
function timeOfDay(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? text : time.toISOString().slice(11, 23);
}

/** The last digits of an operation id. The first ones are the time. */
function shortId(id) {
  return `…${id.slice(-8)}`;
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawing(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets attributes and event handlers (`onclick`), and appends children. Skips null and false. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** A text of a strategy's file: what is between backquotes is code. */
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

/** Writes only if the text is new, so that an unchanged live region stays silent. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const TIERS = {
  safe: "Never oversells under any fault, on one durable primary.",
  guarded: "Never oversells: if the lock was lost and another order has written since, the write is refused.",
  unsafe: "Oversells, on purpose.",
};

/** The dot of a tier. Its name is always next to it. */
function tierDot(tier) {
  return element("i", { class: `dot ${tier in TIERS ? tier : ""}`, "aria-hidden": "true" });
}

function tierBadge(tier) {
  return element("span", { class: "tier", title: TIERS[tier] }, tierDot(tier), tier);
}

const VERDICTS = {
  exact: { text: "exact", tone: "good" },
  broken: { text: "broken", tone: "bad" },
  "not-proven": { text: "not proven", tone: "warn" },
  caught: { text: "caught", tone: "bad" },
  "not-caught": { text: "not caught", tone: "warn" },
};

function verdictOf(row) {
  return VERDICTS[row.verdict] ?? { text: row.verdict, tone: "warn" };
}

/** The answer to a request that failed. */
class Problem extends Error {
  constructor(status, code, detail, body) {
    super(detail);
    Object.assign(this, { status, code, detail, body });
  }
}

/** Sends a request; returns the body of the answer, or throws a Problem. */
async function request(method, path, body, headers = {}) {
  const json = body === undefined ? {} : { "content-type": "application/json" };
  const options = { method, headers: { ...json, ...headers }, cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  let response, text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch {
    const detail = "The lab does not answer. If it was stopped, start it again and reload this page.";
    throw new Problem(0, "no-answer", detail, null);
  }
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    // Not JSON: the status says enough.
  }
  if (response.ok) return answer;
  const detail = answer?.detail ?? `The lab answered ${response.status} ${response.statusText}.`;
  throw new Problem(response.status, answer?.code ?? "error", detail, answer);
}

/** Shows an error in `place`: what happened and what to do. `null` removes it. */
function showProblem(place, problem, ...more) {
  if (!problem) return place.replaceChildren();
  const text = problem.detail ?? String(problem);
  const code = problem.code && problem.code !== "no-answer" ? element("code", {}, problem.code) : null;
  place.replaceChildren(element("p", { class: "problem" }, text, " ", code, ...more));
}

/** A line of code with a button that copies it. `set` replaces the line. */
function commandLine(name) {
  const code = element("code", { class: "command-text" });
  const said = element("span", { class: "hidden-text", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      setText(said, "Copied.");
      button.textContent = "Copied";
    } catch {
      // The user or a policy of the browser can refuse the clipboard. The line is selected instead.
      getSelection().selectAllChildren(code);
      setText(said, "The browser refused to copy. The line is selected.");
      button.textContent = "Selected";
    }
    setTimeout(() => {
      button.textContent = "Copy";
      setText(said, "");
    }, 1500);
  };
  const button = element("button", { type: "button", class: "quiet small-button", onclick: copy, "aria-label": `Copy ${name}` }, "Copy");
  // Browsers have a clipboard only on loopback and on https.
  const node = element("div", { class: "command" }, code, navigator.clipboard ? [button, said] : null);
  const set = (text) => {
    if (code.textContent === text) return;
    // A line break between a flag and its value would be hard to read.
    const words = text.split(/(?<= )(?=-)/).map((word) => element("span", { class: word.length < 40 ? "unbroken" : null }, word));
    code.replaceChildren(...words);
  };
  return { node, set };
}

const toDraw = new Set();
let inFrame = false;

/** Calls `draw` in the next animation frame, once, even if it is asked for many times. */
function drawSoon(draw) {
  // What a draw asks for belongs to the same frame.
  if (inFrame) return draw();
  if (toDraw.size === 0) requestAnimationFrame(drawFrame);
  toDraw.add(draw);
}

function drawFrame() {
  const draws = [...toDraw];
  toDraw.clear();
  inFrame = true;
  try {
    draws.forEach((draw) => draw());
  } finally {
    inFrame = false;
  }
}
