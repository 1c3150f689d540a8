// The report: builds the document from the events of a race that has ended. Needs no service.
"use strict";

function reportHead({ plan, end }) {
  const { machine } = plan;
  const started = new Date(machine.started_at);
  const facts = [
    ["Race", planText(plan)],
    ["Machine", `${plural(machine.cores, "core")}, ${machine.os}, ${machine.arch}`],
    ["Stocklock", machine.version],
    ["Started", Number.isNaN(started.getTime()) ? machine.started_at : started.toISOString().replace("T", " ").slice(0, 19) + " UTC"],
    ["Result", end ? [ENDED[end.state] ?? end.state, end.problem].filter(Boolean).join(" ") : "The race has not ended."],
  ];
  return element("dl", { class: "facts" },
    facts.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))));
}

function reportRun(race, run) {
  const view = new RunView();
  view.show(race, run);
  return element("div", { id: `run-${run.start.strategy}` }, view.node);
}

function buildReport() {
  const race = JSON.parse(byId("data").textContent);
  byId("facts").replaceChildren(reportHead(race));
  const command = commandLine("the command");
  command.set(race.plan.command);
  byId("command").replaceChildren(command.node);
  const runs = race.runs.map((run) => reportRun(race, run));
  if (isSingle(race)) return byId("results").replaceChildren(...runs);
  const compare = new CompareView({ detail: false });
  compare.show(race);
  byId("results").replaceChildren(compare.node, ...runs);
}

buildReport();
