// The charts, in SVG: stock, sparklines, the two lanes of the evidence, bars.
//
// A chart is drawn at the width that it has on the screen, so its text has the same size everywhere.
"use strict";

/** Draws data into a box, again when the data or the width change; at most once per frame. */
class Chart {
  /** `draw(data, width)` answers `{height, label, parts}`. */
  constructor(draw) {
    this.node = element("div", { class: "chart" });
    this.width = 0;
    this.redraw = () => {
      this.width = this.node.clientWidth;
      if (!this.width || !this.data) return;
      const { height, label, parts } = draw(this.data, this.width);
      const size = { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` };
      const picture = drawing("svg", { ...size, role: "img", "aria-label": label }, parts);
      this.node.replaceChildren(picture);
    };
    new ResizeObserver(() => {
      if (this.node.clientWidth !== this.width) drawSoon(this.redraw);
    }).observe(this.node);
  }

  update(data) {
    this.data = data;
    drawSoon(this.redraw);
  }
}

/** A step of 1, 2 or 5 times a power of ten, so that `count` steps reach `top`. */
function niceStep(top, count) {
  const power = 10 ** Math.floor(Math.log10(Math.max(top / count, 1e-9)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step * count >= top);
}

function multiples(step, top) {
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, index) => index * step);
}

function label(x, y, text, attributes = {}) {
  return drawing("text", { x, y, ...attributes }, text);
}

/** The path through points `[x, y]`. A point without a y leaves a gap. */
function linePath(points) {
  let path = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y == null) pen = "M";
    else {
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

let patterns = 0;

/** Units sold, and the level, over time. Everything above the stock is red: it does not exist. */
function drawStock({ stock, points, done }, width) {
  const height = width < 480 ? 220 : 260;
  const [left, right, top, bottom] = [48, 12, 8, 26];
  const last = points.at(-1);
  const highest = Math.max(stock * 1.16, last.sold * 1.07, 1);
  const longest = done ? Math.max(last.ms, 1) : Math.max(last.ms * 1.15, 2000);
  const x = (ms) => left + (ms / longest) * (width - left - right);
  const y = (units) => height - bottom - (Math.max(units, 0) / highest) * (height - top - bottom);
  const parts = [];

  const hatch = `hatch-${++patterns}`;
  const stripe = drawing("path", { d: "M0 8L8 0", class: "stripe" });
  parts.push(drawing("pattern", { id: hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, stripe));
  const zone = { x: left, y: top, width: width - left - right, height: y(stock) - top };
  parts.push(drawing("rect", { ...zone, class: "zone" }));
  parts.push(drawing("rect", { ...zone, fill: `url(#${hatch})` }));
  for (const units of multiples(niceStep(highest, 4), highest)) {
    parts.push(drawing("line", { x1: left, x2: width - right, y1: y(units), y2: y(units), class: "grid" }));
    parts.push(label(left - 8, y(units) + 4, formatNumber(units), { "text-anchor": "end" }));
  }
  for (const seconds of multiples(niceStep(longest / 1000, width / 110), longest / 1000)) {
    const middle = seconds === 0 ? "start" : x(seconds * 1000) > width - right - 12 ? "end" : "middle";
    parts.push(label(x(seconds * 1000), height - 6, `${shortNumber.format(seconds)} s`, { "text-anchor": middle }));
  }

  const sold = points.map((point) => [x(point.ms), y(point.sold)]);
  const level = points.map((point) => [x(point.ms), point.left == null ? null : y(point.left)]);
  const above = sold.filter(([, height]) => height < y(stock));
  if (above.length > 0) parts.push(oversoldArea(points, stock, x, y));
  parts.push(drawing("line", { x1: left, x2: width - right, y1: y(stock), y2: y(stock), class: "limit" }));
  parts.push(label(left + 8, y(stock) - 8, "units that do not exist", { class: "limit-text halo" }));
  parts.push(drawing("path", { d: linePath(level), class: "level-line" }));
  parts.push(drawing("path", { d: linePath(sold), class: "sold-line" }));

  const end = { sold: sold.at(-1), level: level.at(-1) };
  const anchor = (at) => (at > left + 190 ? { x: at - 6, anchor: "end" } : { x: at + 8, anchor: "start" });
  const soldIsHigher = end.level[1] == null || end.sold[1] <= end.level[1];
  const place = (point, text, high, type) => {
    const { x: textX, anchor: side } = anchor(point[0]);
    const textY = Math.min(Math.max(point[1] + (high ? -9 : 18), top + 11), height - bottom - 5);
    parts.push(drawing("circle", { cx: point[0], cy: point[1], r: 4, class: `${type}-dot` }));
    parts.push(label(textX, textY, text, { "text-anchor": side, class: `${type}-text halo` }));
  };
  if (end.level[1] != null) {
    place(end.level, `level: ${formatNumber(last.left)} left`, !soldIsHigher, "level");
  }
  place(end.sold, `${formatNumber(last.sold)} sold`, soldIsHigher, last.sold > stock ? "oversold" : "sold");

  const oversold = Math.max(last.sold - stock, 0);
  const says = last.left == null ? "" : ` The level says ${formatNumber(last.left)} left.`;
  const text = `After ${formatSeconds(last.ms)}: ${formatNumber(last.sold)} sold of ${formatNumber(stock)} in stock, ${formatNumber(oversold)} oversold.${says}`;
  return { height, label: text, parts };
}

/** The area between the stock and the units sold, from the moment at which the stock is used up. */
function oversoldArea(points, stock, x, y) {
  const first = points.findIndex((point) => point.sold > stock);
  const before = points[first - 1];
  const share = before ? (stock - before.sold) / (points[first].sold - before.sold) : 0;
  const start = before ? before.ms + share * (points[first].ms - before.ms) : points[first].ms;
  const after = points.slice(first).map((point) => `L${x(point.ms)} ${y(point.sold)}`);
  const path = `M${x(start)} ${y(stock)}${after.join("")}L${x(points.at(-1).ms)} ${y(stock)}Z`;
  return drawing("path", { d: path, class: "oversold-area" });
}

/** One or two small lines without axes; the figure is next to them. */
function drawSparkline({ name, series }, width) {
  const height = 36;
  const all = series.flat().filter((value) => value != null);
  const highest = Math.max(...all, 1e-9);
  const parts = series.map((values, index) => {
    const x = (at) => (values.length < 2 ? 0 : (at / (values.length - 1)) * (width - 2) + 1);
    const y = (value) => (value == null ? null : height - 2 - (value / highest) * (height - 6));
    const points = values.map((value, at) => [x(at), y(value)]);
    return drawing("path", { d: linePath(points), class: index === 0 ? "spark" : "spark second" });
  });
  return { height, label: `${name}, at most ${formatMs(highest)}`, parts };
}

/**
 * Two deductions that were computed from the same level, and what each wrote. They read the same version in
 * SQL, or without a version the same counter in Redis. An example has no times.
 */
function drawEvidence(evidence, width) {
  const { first, second, read, read_version: version } = evidence;
  const narrow = width < 600;
  const [left, box, tall] = narrow ? [1, Math.min(104, width * 0.32), 42] : [104, 126, 42];
  const [laneA, laneB] = narrow ? [46, 130] : [32, 112];
  const room = width - left - 1;
  const height = laneB + 32;
  const parts = [];
  const lane = (y, name) => {
    const place = narrow ? { x: width, y: y - 28, "text-anchor": "end" } : { x: 0, y: y + 4 };
    parts.push(drawing("text", { ...place, class: "lane-name" }, name));
    parts.push(drawing("line", { x1: left, x2: width, y1: y, y2: y, class: "lane" }));
  };
  const step = (x, y, title, detail, type) => {
    parts.push(drawing("rect", { x, y: y - tall / 2, width: box, height: tall, rx: 8, class: `step ${type}` }));
    parts.push(label(x + box / 2, y - 3, title, { class: "step-title", "text-anchor": "middle" }));
    parts.push(label(x + box / 2, y + 13, detail, { "text-anchor": "middle" }));
  };
  const isCounter = version == null;
  const source = isCounter ? "from Redis" : `version ${formatNumber(version)}`;
  const same = first.replica === second.replica;
  lane(laneA, same ? `${first.replica ?? "one"}, 1st` : first.replica);
  lane(laneB, same ? `${second.replica ?? "one"}, 2nd` : second.replica);
  const gap = new Date(second.at) - new Date(first.at);
  const later = !second.at ? `${read} − 1` : gap >= 0 ? `${gap} ms later` : timeOfDay(second.at);
  const reads = [left, left + room * 0.05];
  const writes = narrow ? [left + room * 0.38, width - box - 1] : [left + room * 0.36, left + room * 0.56];
  const [fromX, fromY, toX, toY] = [reads[0] + box / 2, laneA + tall / 2, reads[1] + box / 2, laneB - tall / 2];
  const bend = (fromY + toY) / 2;
  parts.push(drawing("path", { d: `M${fromX} ${fromY}C${fromX} ${bend} ${toX} ${bend} ${toX} ${toY}`, class: "same" }));
  parts.push(label(toX + 10, bend + 4, isCounter ? "the same counter" : "the same version", { class: "limit-text" }));
  step(reads[0], laneA, `reads ${formatNumber(read)}`, source, "read");
  step(reads[1], laneB, `reads ${formatNumber(read)}`, source, "read");
  step(writes[0], laneA, `writes ${formatNumber(first.wrote)}`, first.at ? timeOfDay(first.at) : `${read} − 1`, "");
  step(writes[1], laneB, `writes ${formatNumber(second.wrote)}`, later, "");
  const right = formatNumber(first.wrote + second.wrote - read);
  if (!narrow) {
    const x = width - box - 1;
    const middle = (laneA + laneB) / 2;
    parts.push(drawing("path", { d: `M${writes[1] + box} ${laneB}L${x + box / 2} ${laneB}L${x + box / 2} ${middle + 26}`, class: "lane" }));
    parts.push(drawing("rect", { x, y: middle - 26, width: box, height: 52, rx: 8, class: "step wrong" }));
    parts.push(label(x + box / 2, middle - 4, `level: ${formatNumber(second.wrote)}`, { class: "step-title", "text-anchor": "middle" }));
    parts.push(label(x + box / 2, middle + 14, `should be ${right}`, { class: "limit-text", "text-anchor": "middle" }));
  }
  const what = isCounter ? `${read} units from Redis` : `version ${version}, ${read} units`;
  const text = `${first.replica} and ${second.replica} both read ${what}. The first wrote ${first.wrote}, the second ${second.wrote}. The level should be ${right}.`;
  return { height, label: text, parts };
}

/** Horizontal bars. `rows`: `{name, tier, value, text, bad}`; `log` gives every power of ten equal room. */
function drawBars({ title, rows, log }, width) {
  const [line, top, names, values] = [24, 4, 112, 62];
  const height = top + rows.length * line + 20;
  const room = Math.max(width - names - values, 20);
  const known = rows.map((row) => row.value).filter((value) => value > 0);
  const highest = Math.max(...known, 1);
  const lowest = 10 ** Math.floor(Math.log10(Math.max(Math.min(...known, highest) / 2, 0.1)));
  const decades = Math.log10(highest / lowest) || 1;
  const size = (value) => {
    if (!(value > 0)) return 0;
    return log ? Math.max((Math.log10(value / lowest) / decades) * room, 3) : Math.max((value / highest) * room, 3);
  };
  const marks = log
    ? Array.from({ length: Math.floor(decades + 1e-9) + 1 }, (_, index) => +(lowest * 10 ** index).toPrecision(3))
    : multiples(niceStep(highest, 3), highest);
  const parts = [];
  for (const mark of marks) {
    const x = names + (mark === 0 || mark === lowest ? 0 : size(mark));
    parts.push(drawing("line", { x1: x, x2: x, y1: top, y2: height - 18, class: "grid" }));
    parts.push(label(x, height - 4, shortNumber.format(mark), { "text-anchor": "middle" }));
  }
  rows.forEach((row, index) => {
    const y = top + index * line;
    parts.push(label(names - 8, y + 16, row.name, { "text-anchor": "end", class: "bar-name" }));
    parts.push(drawing("rect", { x: names, y: y + 5, width: size(row.value), height: 14, rx: 3, class: `bar ${row.tier}` }));
    parts.push(label(names + size(row.value) + 6, y + 16, row.text, { class: row.bad ? "limit-text halo" : "bar-value halo" }));
  });
  const text = rows.map((row) => `${row.name} ${row.text}`).join(", ");
  return { height, label: `${title}: ${text}`, parts };
}
