// The tab Strategies: a card for each, and four questions that end in one strategy.
"use strict";

const QUESTIONS = [
  {
    key: "decides",
    title: "What decides whether an order is accepted?",
    options: [["count", "Only whether enough units are left"], ["code", "My own code, between reading and writing"]],
  },
  {
    key: "load",
    title: "How fast does your busiest SKU sell?",
    options: [["normal", "Up to some hundred orders per second"], ["hot", "Faster, as in a flash sale"]],
  },
  {
    key: "refuses",
    title: "Who refuses the many orders that come after the last unit is sold?",
    options: [["replica", "Each replica, and the database"], ["redis", "Redis, for all replicas together"]],
    matters: (answers) => answers.decides === "count" && answers.load === "hot",
  },
  {
    key: "lock",
    title: "What else must happen while no other order may change the SKU?",
    options: [
      ["no", "Nothing outside the database"],
      ["redis", "Work outside the database, and Redis is there"],
      ["table", "The same, and the database is the only server"],
      ["zookeeper", "The same, and the lock must survive the loss of one server"],
      ["masters", "The same, with Redis instead of ZooKeeper"],
    ],
    matters: (answers) => answers.decides === "code",
  },
];

/** The strategy for these answers and the reason. Null while an answer is missing. */
function chooseStrategy(answers) {
  const open = QUESTIONS.some(({ key, matters }) => !answers[key] && (!matters || matters(answers)));
  if (open) return null;
  const { decides, load, refuses, lock } = answers;
  if (decides === "count" && load === "normal") {
    return ["single-sql", "One statement checks and takes the units, so there is nothing to lock and nothing to retry."];
  }
  if (decides === "count" && refuses === "redis") {
    return ["redis-lua", "A counter in Redis refuses orders without a key when the units are gone. The database decides every sale, so nothing depends on what Redis keeps."];
  }
  if (decides === "count") {
    return ["group-commit", "Orders that wait for the same SKU share one transaction, so the disk no longer limits the sale."];
  }
  if (lock === "zookeeper") {
    return ["zookeeper-lock", "The lock is on a majority of the ensemble, and orders get it in the order in which they asked."];
  }
  if (lock === "masters") {
    return ["redlock", "The lock is on a majority of independent Redis masters. It has no fencing token: of two holders that read the same version, one write is refused."];
  }
  if (lock === "table") {
    return ["sql-lock", "The lock is a row in the database. It keeps other orders out during your work, and no transaction stays open."];
  }
  if (lock === "redis") {
    return ["redis-lock", "The lock keeps other orders out during your work, and the store refuses a write if the lock was lost and another order has written since."];
  }
  if (load === "hot") {
    return ["for-update", "Orders for a busy SKU wait for its row. With versions, most attempts would be discarded."];
  }
  return ["optimistic", "Your code runs without a lock. The write is refused if the level has changed, and is tried again."];
}

/** The lines of the configuration that choose a strategy. */
function settingLines(strategy) {
  const addresses = { redis: "REDIS_URL=redis://127.0.0.1:6379", "redis-masters": `REDLOCK_URLS=${[1, 2, 3].map((port) => `redis://127.0.0.1:638${port}`).join(",")}`, zookeeper: "ZOOKEEPER_CONNECT=127.0.0.1:2181" };
  const needs = strategy.needs.map((name) => addresses[name]).filter(Boolean);
  return [`STRATEGY=${strategy.name}`, ...needs].join("\n");
}

/** The four questions. `onRace(name)` starts to race the strategy. */
function buildChooser(strategies, onRace) {
  const answers = {};
  const find = (name) => strategies.find((strategy) => strategy.name === name);
  const result = element("div", { class: "choice-result", role: "status" });
  const sets = QUESTIONS.map(({ key, title, options }, index) => {
    const radio = ([value, text]) => element("label", { class: "option" },
      element("input", { type: "radio", name: `question-${key}`, value }), element("span", {}, text));
    return element("fieldset", { class: "question" }, element("legend", {}, `${index + 1}. ${title}`),
      options.map(radio), element("p", { class: "dim skip-note", hidden: true }, "Your answers above already decide this."));
  });
  const update = () => {
    QUESTIONS.forEach(({ key, matters }, index) => {
      const chosen = sets[index].querySelector("input:checked");
      if (chosen) answers[key] = chosen.value;
      const skip = Boolean(matters && answers.decides && (index !== 2 || answers.decides === "code" || answers.load) && !matters(answers));
      sets[index].disabled = skip;
      sets[index].querySelector(".skip-note").hidden = !skip;
    });
    const choice = chooseStrategy(answers);
    if (!choice) {
      const first = element("p", { class: "dim" }, "Answer the questions to see one strategy.");
      return result.replaceChildren(first);
    }
    const strategy = find(choice[0]);
    if (!strategy) return result.replaceChildren(element("p", {}, `Use ${choice[0]}.`));
    const line = commandLine("the setting");
    line.set(settingLines(strategy));
    const race = element("button", { type: "button", class: "primary", onclick: () => onRace(strategy.name) }, `Race ${strategy.name}`);
    result.replaceChildren(
      element("p", { class: "headline" }, "Use ", strategy.name, " ", tierBadge(strategy.tier)),
      element("p", {}, choice[1]),
      element("p", { class: "dim" }, `Cost: ${strategy.costs}`),
      line.node, strategy.available ? race : element("p", { class: "dim" }, `To race it here: ${strategy.reason}`));
  };
  update();
  const questions = element("div", { class: "questions", oninput: update }, sets);
  return element("div", { class: "chooser" }, questions, result);
}

function strategyCard(strategy, onRace) {
  const lines = [
    ["Guarantees", strategy.guarantees],
    ["Costs", strategy.costs],
    ["Fails when", strategy.fails_when],
    ["Use when", strategy.use_when],
  ];
  const titles = {
    redis: "Redis",
    "redis-masters": "a majority of the Redis masters",
    zookeeper: "ZooKeeper",
  };
  const servers = strategy.needs.map((name) => titles[name] ?? name);
  const needs = servers.length ? `Needs ${servers.join(" and ")}` : "Needs no other server";
  const race = element("button", { type: "button", class: "quiet", onclick: () => onRace(strategy.name) }, `Race ${strategy.name}`);
  const missing = element("p", { class: "missing" }, `Not available here: ${strategy.reason}`);
  return element("article", { class: `card strategy ${strategy.tier}`, "aria-label": strategy.name },
    element("header", { class: "run-head" }, element("h2", {}, strategy.name), tierBadge(strategy.tier)),
    element("p", { class: "dim" }, needs),
    element("dl", {}, lines.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, withCode(text))))),
    strategy.available ? race : missing);
}

function buildStrategies(strategies, onRace) {
  byId("chooser").replaceChildren(buildChooser(strategies, onRace));
  byId("strategy-cards").replaceChildren(...strategies.map((strategy) => strategyCard(strategy, onRace)));
}
