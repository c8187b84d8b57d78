// Insights: what to do next, as the IPU Model found it.

function insightsTab(report, panel, open) {
  const titles = { problem: "Problem", hint: "Worth a change", note: "Good to know" };
  const assumed = report.insights.filter(({ title }) => title === "Assumed");
  const found = report.insights.filter(({ title }) => title !== "Assumed");
  if (!found.some(({ level }) => level !== "note")) {
    panel.append(
      empty("Nothing stands out: the model fits, IPUs are busy, and no single thing takes most of the time."),
    );
  }
  panel.append(
    ...found.map((it) =>
      h(
        "section",
        { class: `card insight ${it.level}` },
        h("div", { class: "level" }, titles[it.level]),
        h("h2", {}, it.title),
        h("p", {}, it.text),
        it.action ? h("p", {}, h("b", {}, "What to do: "), it.action) : null,
        it.effect ? h("p", {}, h("b", {}, "When it was tried: "), it.effect) : null,
        it.tab
          ? h(
              "p",
              {},
              h(
                "button",
                { type: "button", class: "link", onclick: () => open(it.tab, it.operation) },
                `Show in ${tabTitle(it.tab)}`,
              ),
            )
          : null,
      ),
    ),
  );
  if (assumed.length)
    panel.append(
      card(
        "What the IPU Model assumed",
        h(
          "ul",
          {},
          assumed.map(({ text }) => h("li", {}, text)),
        ),
      ),
    );
}
