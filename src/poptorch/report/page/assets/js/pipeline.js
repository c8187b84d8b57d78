// Pipeline: who works on which micro-batch, as modelled and as measured on this host.

const JOBS = {
  forward: "#3d7dd8",
  backward: "#d97724",
  step: "#3d7dd8",
  "whole model": "#3d7dd8",
  "weight update": "#5a9e3e",
  update: "#5a9e3e",
  input: "#2a9d8f",
  output: "#8e5bbf",
  load: "#2fa8c7",
  store: "#c2a37a",
  leftover: "#a3a833",
};
const jobKind = (stage) =>
  stage.startsWith("forward") ? "forward" : stage.startsWith("backward") ? "backward" : stage;

function pipelineTab(report, panel) {
  const { jobs, spans } = report.tables;
  const { estimate } = report.document;
  const waits = [];
  if (ipuCount(report) < 2) {
    panel.append(
      empty(
        `This model is on one IPU: there is no pipeline. ${spans && spans.rows ? "What this host did is in the tab Host." : ""}`,
      ),
    );
  } else if (!jobs || !jobs.rows) {
    panel.append(card("Modelled", empty("There are no cycles in this report (profiler.includeCycleEstimates).")));
  } else {
    const lanes = modelledJobs(report);
    const micro = 1 + jobs.numbers("micro").reduce((most, it) => Math.max(most, it), -1);
    const cut =
      micro < estimate.round.microBatches ? ` The chart has the first ${format.number(micro)} micro-batches.` : "";
    panel.append(
      card(
        "Modelled: IPUs and micro-batches",
        controls(lanes.zoom),
        lanes.div,
        h(
          "p",
          { class: "muted" },
          `${estimate.round.pipelined ? "Pipelined" : "One after the other"}: ` +
            `${format.number(estimate.round.microBatches)} micro-batches, ${format.cycles(estimate.round.cycles)} cycles` +
            `${estimate.updates ? " up to the weight update" : ""}.${cut} ` +
            `Gaps are bubbles: the IPU waits for others, ${format.share(estimate.bubble)} of the time.`,
        ),
      ),
    );
    const bubbles = chart("Work and waiting of each IPU", "low");
    bubbles.style.height = `${8 + 1.8 * ipuCount(report)}rem`;
    panel.append(card("Bubbles", bubbles));
    waits.push(
      () => lanes.draw(),
      () => drawBubbles(report, bubbles),
    );
  }
  if (ipuCount(report) > 1) {
    if (spans && spans.rows) waits.push(measuredJobs(report, panel, "Measured on this host"));
    else
      panel.append(
        card(
          "Measured on this host",
          empty("No call was measured. Call the model, or turn on autoReport.outputExecutionProfile."),
        ),
      );
  }
  return waits.reduce((before, draw) => before.then(draw), Promise.resolve());
}

function modelledJobs(report) {
  const { jobs } = report.tables;
  const clock = report.document.target.clockFrequencyInHz;
  const both = (cycles) => `${format.cycles(cycles)} cycles (${format.seconds(cycles / clock)})`;
  const micro = (i) => jobs.at("micro", i);
  return new Lanes(
    "Modelled pipeline",
    {
      count: jobs.rows,
      lane: (i) => jobs.at("ipu", i),
      start: (i) => jobs.at("start", i),
      length: (i) => jobs.at("cycles", i),
      kind: (i) => jobKind(jobs.at("stage", i)),
      name: (i) => (micro(i) < 0 ? "update" : String(micro(i))),
      hover: (i) =>
        `<b>${escaped(jobs.at("stage", i))}</b><br>${micro(i) < 0 ? "" : `micro-batch ${micro(i)}<br>`}${both(jobs.at("cycles", i))}`,
    },
    {
      lanes: report.document.memory.ipus.map((_, place) => ipuName(report, place)),
      colours: JOBS,
      axis: "cycles; numbers are micro-batches",
      value: both,
    },
  );
}

function drawBubbles(report, div) {
  const { estimate, memory } = report.document;
  const length = estimate.round.cycles;
  const busy = memory.ipus.map(
    (ipu) =>
      estimate.stages.filter((stage) => stage.ipu === ipu.ipu).reduce((sum, stage) => sum + stage.cycles, 0) *
      estimate.round.microBatches,
  );
  const names = memory.ipus.map((_, place) => ipuName(report, place));
  const bar = (name, values, color) => ({
    type: "bar",
    orientation: "h",
    name,
    y: names,
    x: values.map((value) => (100 * value) / length),
    marker: { color },
    text: values.map((value) => format.share(value / length)),
    textposition: "inside",
    insidetextanchor: "middle",
    textangle: 0,
    hovertext: values.map((value) => `${name}: ${format.cycles(value)} cycles`),
    hoverinfo: "text",
  });
  return charts.draw(
    div,
    [
      bar("works", busy, "#3d7dd8"),
      bar(
        "waits",
        busy.map((value) => Math.max(0, length - value)),
        "#9aa5b1",
      ),
    ],
    {
      barmode: "stack",
      margin: { t: 35, r: 20, b: 45, l: 70 },
      xaxis: { title: { text: "% of the round" }, range: [0, 100] },
      yaxis: { autorange: "reversed" },
    },
  );
}

/** What was measured: lanes are parts of the model or workers of the host. Returns the first drawing. */
function measuredJobs(report, panel, title) {
  const { spans } = report.tables;
  const { runs } = report.document.execution;
  const state = { run: runs.length - 1, by: ipuCount(report) > 1 ? "part" : "worker", replica: -1 };
  const replicas = 1 + spans.numbers("replica").reduce((most, it) => Math.max(most, it), 0);
  const place = h("div", {});
  async function show() {
    charts.drawn.delete(place.querySelector(".chart"));
    const rows = range(spans.rows).filter(
      (row) => spans.at("run", row) === state.run && (state.replica < 0 || spans.at("replica", row) === state.replica),
    );
    const numbers = [...new Set(Array.from(rows, (row) => spans.at(state.by, row)))].sort((a, b) => a - b);
    const micro = (i) => spans.at("micro", rows[i]);
    const lanes = new Lanes(
      "Measured spans",
      {
        count: rows.length,
        lane: (i) => numbers.indexOf(spans.at(state.by, rows[i])),
        start: (i) => spans.at("start", rows[i]) * 1e3,
        length: (i) => (spans.at("end", rows[i]) - spans.at("start", rows[i])) * 1e3,
        kind: (i) => spans.at("kind", rows[i]),
        name: (i) =>
          ["forward", "backward", "step"].includes(spans.at("kind", rows[i]))
            ? String(micro(i))
            : spans.at("kind", rows[i]),
        hover: (i) =>
          [
            `<b>${escaped(spans.at("label", rows[i]) || spans.at("kind", rows[i]))}</b>`,
            `part ${spans.at("part", rows[i])}, micro-batch ${micro(i)}, ` +
              `replica ${spans.at("replica", rows[i])}, worker ${spans.at("worker", rows[i])}`,
            format.seconds(spans.at("end", rows[i]) - spans.at("start", rows[i])),
          ].join("<br>"),
      },
      {
        lanes: numbers.map((number) => `${state.by} ${number}`),
        colours: JOBS,
        axis: "ms since the call began; numbers are micro-batches",
        value: (ms) => format.seconds(ms / 1e3),
      },
    );
    place.replaceChildren(controls(lanes.zoom), lanes.div);
    await lanes.draw();
  }
  const change = (key) => (value) => {
    state[key] = key === "by" ? value : Number(value);
    return show();
  };
  panel.append(
    card(
      title,
      controls(
        select(
          "Call",
          runs.map((run, i) => [String(i), `${run.name}: ${format.seconds(run.seconds)}`]),
          change("run"),
          String(state.run),
        ),
        choice(
          "Lanes",
          [
            ["part", "Parts of the model"],
            ["worker", "Workers of the host"],
          ],
          state.by,
          change("by"),
        ),
        replicas > 1
          ? select(
              "Replica",
              [["-1", "All"], ...Array.from(range(replicas), (i) => [String(i), String(i)])],
              change("replica"),
            )
          : null,
      ),
      place,
    ),
  );
  return show;
}
