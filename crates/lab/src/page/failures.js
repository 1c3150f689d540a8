// The tab Failures: the stories of the gallery, played step by step in one lane for each actor.
"use strict";

class FailuresTab {
  constructor(stories) {
    this.stories = stories;
    this.variant = "naive";
    this.at = 0;
    this.list = byId("story-list");
    this.place = byId("story-view");
    this.links = new Map();
    this.buildList();
    document.addEventListener("keydown", (event) => this.key(event));
  }

  buildList() {
    const groups = Map.groupBy(this.stories, ({ group }) => group);
    this.list.replaceChildren(element("h2", {}, "Stories"));
    for (const [group, stories] of groups) {
      const links = stories.map((story) => {
        const link = element("a", { class: "level", href: `#failures/${story.name}`, title: story.summary }, story.title);
        this.links.set(story.name, link);
        return element("li", {}, link);
      });
      this.list.append(element("h3", {}, group), element("ul", { class: "stories" }, links));
    }
  }

  /** Shows the story with this name, or the first one. */
  open(name) {
    const story = this.stories.find((each) => each.name === name) ?? this.stories[0];
    for (const [each, link] of this.links) {
      if (each === story.name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    if (story === this.story) return;
    this.story = story;
    this.choose("naive");
  }

  /** Shows a variant from its first step. */
  choose(variant) {
    this.variant = variant;
    this.at = 0;
    this.build();
    this.draw();
  }

  get steps() {
    return this.story[this.variant].steps;
  }

  build() {
    const { story } = this;
    const tell = (variant, title) => element("button", {
      type: "button", class: "quiet", "aria-pressed": String(this.variant === variant),
      onclick: () => {
        this.choose(variant);
        this.place.querySelector(`[aria-pressed="true"]`).focus();
      },
    }, title);
    const button = (title, step) => element("button", { type: "button", class: "primary", onclick: () => this.go(this.at + step) }, title);
    this.back = button("Back", -1);
    this.forward = button("Forward", 1);
    this.count = element("span", { class: "dim" });
    this.sentence = element("p", { class: "sentence", role: "status" });
    // An actor of the other variant only would have an empty lane.
    const actors = story.actors.filter((actor) => this.steps.some((step) => step.actor === actor));
    this.rows = this.steps.map((step, index) => this.row(step, index, actors));
    const lanes = element("table", { class: "lanes" },
      element("caption", { class: "hidden-text" }, "What each actor does, from top to bottom"),
      element("thead", {}, element("tr", {}, actors.map((actor) => element("th", { scope: "col" }, actor)))),
      element("tbody", {}, this.rows));
    const command = commandLine("the command");
    command.set(`stocklock failures ${story.name}`);
    this.end = element("div", {});
    this.place.replaceChildren(
      element("section", { class: "card", "aria-label": "Story" },
        element("h2", { class: "run-title" }, story.title),
        element("p", {}, withCode(story.summary)),
        element("p", { class: "dim" }, `Servers: ${story.servers.join(", ")}. The tests compare each answer with those of real servers.`),
        command.node),
      element("section", { class: "card player", "aria-label": "Player" },
        element("div", { class: "buttons" }, tell("naive", "What goes wrong"), tell("right", "The right way")),
        element("div", { class: "buttons" }, this.back, this.forward, this.count),
        this.sentence, lanes, this.end),
      element("section", { class: "card", "aria-label": "Explanation" },
        element("dl", { class: "facts" }, [["Why", story.why], ["The right way", story.right_way], ["Our strategies", story.strategy]]
          .map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, withCode(text)))))));
  }

  row(step, index, actors) {
    const answer = element("span", { class: step.answer === "waits" || step.answer.startsWith("error") ? "back bad" : "back" }, `→ ${step.answer}`);
    const cell = (actor) => element("td", { "data-actor": actor },
      actor === step.actor ? [element("b", { class: "lane-actor", "aria-hidden": "true" }, actor), element("code", {}, step.command), answer] : null);
    return element("tr", { "data-step": index + 1 }, actors.map(cell));
  }

  /** Goes to a step; 0 is before the first one. */
  go(step) {
    this.at = Math.max(0, Math.min(step, this.steps.length));
    this.draw();
  }

  draw() {
    const { at, steps } = this;
    this.rows.forEach((row, index) => {
      row.hidden = index >= at;
      row.classList.toggle("now", index === at - 1);
    });
    // Not `disabled`, which would take the focus away.
    this.back.setAttribute("aria-disabled", String(at === 0));
    this.forward.setAttribute("aria-disabled", String(at === steps.length));
    setText(this.count, `Step ${at} of ${steps.length}`);
    this.sentence.replaceChildren(...withCode(at ? steps[at - 1].sentence : "Press Forward, or the right arrow key."));
    const isEnd = at === steps.length;
    const tone = this.variant === "naive" ? "bad" : "good";
    const finding = element("p", { class: `verdict-line ${tone}` }, `At the end: ${this.story[this.variant].finding}`);
    this.end.replaceChildren(...(isEnd ? [finding] : []));
  }

  key(event) {
    if (byId("view-failures").hidden || event.altKey || event.ctrlKey || event.metaKey) return;
    const step = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.steps.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.go(step);
  }
}
