// The start: read the data, make the tabs, open the one that the address names.

const TABS = {
  summary: ["Summary", summaryTab],
  insights: ["Insights", insightsTab],
  memory: ["Memory", memoryTab],
  liveness: ["Liveness", livenessTab],
  programs: ["Program tree", programsTab],
  operations: ["Operations", operationsTab],
  trace: ["Execution trace", traceTab],
  pipeline: ["Pipeline", pipelineTab],
  host: ["Host", hostTab],
};
const tabTitle = (key) => TABS[key][0];

async function start() {
  theme.start();
  const calls = [...document.querySelectorAll(".packed-calls")];
  const reports = await Promise.all(
    [...document.querySelectorAll(".packed-model")].map((model, i) => reportOf(model, calls[i])),
  );
  const packed = document.getElementById("packed-comparison");
  const comparison = packed ? await contentOf(packed) : null;
  let report = reports[0];
  const tabs = new Tabs(document.getElementById("tabs"), document.getElementById("panels"));
  const open = async (key, query = "") => {
    await tabs.open(key);
    tabs.tabs.get(key).tab.focus();
    search(key, query);
  };
  const search = (key, query) => {
    const box = query && tabs.tabs.get(key).panel.querySelector("input[type=search]");
    if (!box) return;
    box.value = query;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    tabs.remember(key, query);
  };
  if (comparison) tabs.add("compare", "Comparison", (panel) => compareTab(reports, comparison, panel));
  for (const [key, [title, build]] of Object.entries(TABS)) tabs.add(key, title, (panel) => build(report, panel, open));

  const describe = () => {
    const { model, training, created, target } = report.document;
    document.getElementById("title").textContent = comparison ? reports.map(({ name }) => name).join(" and ") : model;
    document.getElementById("subtitle").textContent =
      `${comparison ? `${report.name}: ` : ""}${training ? "training" : "inference"} on ` +
      `${target.numIPUs} IPU${target.numIPUs > 1 ? "s" : ""} (${target.architecture}), ` +
      created.slice(0, 16).replace("T", " ");
  };
  if (reports.length > 1) {
    const box = document.getElementById("report");
    box.append(...reports.map(({ name }, i) => h("option", { value: i }, name)));
    box.addEventListener("change", () => {
      report = reports[Number(box.value)];
      charts.forget();
      describe();
      tabs.refresh();
    });
    document.getElementById("choose-report").hidden = false;
  }
  describe();
  theme.listeners.push(() => charts.redraw());
  document.getElementById("loading").remove();
  const [wanted, query] = location.hash.slice(1).split("?").map(decodeURIComponent); // a link may name a tab and a search
  await tabs.open(tabs.tabs.has(wanted) ? wanted : tabs.tabs.keys().next().value);
  if (tabs.tabs.has(wanted)) search(wanted, query);
  document.body.dataset.ready = Math.round(performance.now()); // milliseconds since the navigation began
}

start();
