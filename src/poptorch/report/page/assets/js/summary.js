// Summary: the figures that matter, then everything that the text summary has.

function summaryTab(report, panel) {
  const { document: it } = report;
  const fullest = Math.max(...it.memory.ipus.map((ipu) => ipu.maxTileBytes));
  const runs = it.execution.runs;
  const measured = runs.length ? runs.reduce((sum, run) => sum + run.seconds, 0) / runs.length : null;
  const memory = chart("Memory of each IPU by category");
  const cycles = chart("Cycles of a call by what they are spent on");
  panel.append(
    h(
      "div",
      { class: "tiles-of-figures" },
      figure("samples per second (modelled)", format.number(it.estimate.throughput)),
      figure("time of a call (modelled)", format.seconds(it.estimate.seconds)),
      figure("time of a call (measured here)", measured === null ? "not measured" : format.seconds(measured)),
      figure("cycles of a call", format.flops(it.estimate.cycles)),
      figure(
        `of ${format.bytes(it.target.bytesPerTile)} on the fullest tile`,
        format.share(fullest / it.target.bytesPerTile),
      ),
      figure(
        it.estimate.fits ? "all tiles have room" : "some tiles are out of memory",
        it.estimate.fits ? "fits" : "does not fit",
      ),
      figure(
        `${it.target.numReplicas} × ${it.target.ipusPerReplica}, ${it.target.architecture}`,
        `${it.target.numIPUs} IPU${it.target.numIPUs > 1 ? "s" : ""}`,
      ),
    ),
    h(
      "p",
      { class: "muted" },
      "Cycles and bytes are figures of the IPU Model. Times of calls are measured on this host, and say nothing about IPUs.",
    ),
    h("div", { class: "columns" }, card("Memory by IPU", memory), card("Where the cycles go", cycles)),
    h(
      "div",
      { class: "columns" },
      report.sections.map((section) => card(section.title, sectionContent(section))),
    ),
    card(
      "Where the report comes from",
      smallTable(
        [],
        [
          ["Model", `${it.model} (${it.training ? "training" : "inference"})`],
          ["Written", it.created],
          ...Object.entries(it.versions),
          ["Micro-batch", format.number(it.loop.microBatch)],
          ["Device iterations", format.number(it.loop.deviceIterations)],
          ["Gradient accumulation", format.number(it.loop.gradientAccumulation)],
          ...Object.entries(it.engineOptions),
        ],
      ),
    ),
  );
  return Promise.all([drawMemoryByIpu(report, memory), drawResources(report, cycles)]);
}

function sectionContent(section) {
  const numbers = new Set(
    section.columns
      .map((_, i) => i)
      .filter((i) => i > 0 && section.rows.every((row) => /^[\d.,]+( \w+)?$/.test(row[i]))),
  );
  const content = [
    section.lines.length ? smallTable([], section.lines) : null,
    section.rows.length ? smallTable(section.columns, section.rows, numbers) : null,
  ];
  for (const part of section.parts) {
    const long = part.lines.length + part.rows.length > 6;
    content.push(h("details", { open: !long }, h("summary", {}, part.title), sectionContent(part)));
  }
  return content;
}

function drawMemoryByIpu(report, div) {
  const { ipus } = report.document.memory;
  const categories = [...new Set(ipus.flatMap((ipu) => Object.keys(ipu.byCategory)))];
  const names = ipus.map((_, place) => ipuName(report, place));
  const [unit, unitName] = unitOf(Math.max(...ipus.map((ipu) => ipu.includingGaps)));
  const traces = categories.map((category, i) => ({
    type: "bar",
    name: escaped(category),
    x: names,
    y: ipus.map((ipu) => (ipu.byCategory[category] ?? 0) / unit),
    marker: { color: colourOf(i) },
    hovertext: ipus.map((ipu) => `${escaped(category)}<br>${format.bytes(ipu.byCategory[category] ?? 0)}`),
    hoverinfo: "text",
  }));
  return charts.draw(div, traces, {
    barmode: "stack",
    yaxis: { title: { text: unitName } },
    xaxis: { type: "category" },
    bargap: ipus.length < 4 ? 0.6 : 0.2,
    legend: { orientation: "v", x: 1.02, y: 1, xanchor: "left", yanchor: "top", traceorder: "reversed" },
  });
}

const RESOURCES = {
  compute: "compute",
  exchange: "exchange",
  sync: "sync",
  host: "host exchange",
  link: "global exchange",
  DDR: "streaming memory",
};

function drawResources(report, div) {
  const { estimate } = report.document;
  const keys = Object.keys(RESOURCES).filter((key) => estimate.cyclesByResource[key] > 0);
  const total = keys.reduce((sum, key) => sum + estimate.cyclesByResource[key], 0);
  const shares = keys.map((key) => estimate.cyclesByResource[key] / total);
  return charts.draw(
    div,
    [
      {
        type: "bar",
        orientation: "h",
        y: keys.map((key) => RESOURCES[key]),
        x: shares.map((share) => 100 * share),
        marker: { color: keys.map((key) => PHASES[RESOURCES[key]]) },
        text: shares.map(format.share),
        textposition: "auto",
        hovertext: keys.map((key) => `${RESOURCES[key]}: ${format.cycles(estimate.cyclesByResource[key])} cycles`),
        hoverinfo: "text",
      },
    ],
    {
      xaxis: { title: { text: "% of the cycles of a call" }, rangemode: "tozero" },
      yaxis: { autorange: "reversed" },
      showlegend: false,
    },
  );
}
