// Host: what calls took on this machine, beside what the IPU Model expects of IPUs.

function hostTab(report, panel) {
  const { estimate, execution } = report.document;
  const { runs } = execution;
  if (!runs.length) {
    panel.append(
      empty(
        "No call was measured. Call the model, or turn on autoReport.outputExecutionProfile. " +
          `The IPU Model expects ${format.seconds(estimate.seconds)} on IPUs.`,
      ),
    );
    return undefined;
  }
  const mean = runs.reduce((sum, run) => sum + run.seconds, 0) / runs.length;
  const div = chart("Measured and modelled time of each call");
  panel.append(
    h(
      "div",
      { class: "tiles-of-figures" },
      figure("mean of the calls that were kept", format.seconds(mean)),
      figure("modelled on IPUs", format.seconds(estimate.seconds)),
      figure("measured time, in modelled times", `${format.number(mean / estimate.seconds)} ×`),
      figure("samples per second, measured", format.number(estimate.samples / mean)),
      figure("samples per second, modelled", format.number(estimate.throughput)),
      figure("calls in all", format.number(execution.calls ?? runs.length)),
    ),
    h(
      "div",
      { class: "columns" },
      card("Time of a call", div),
      card(
        "What this host did",
        ...hostRuns(runs).parts(),
        h(
          "p",
          { class: "muted" },
          "Sums of all workers, and how many there were: together they can be longer than the call.",
        ),
      ),
    ),
  );
  const names = runs.map((run) => run.name),
    few = runs.length <= 12;
  const draw = () =>
    charts.draw(
      div,
      [
        {
          type: "bar",
          name: "measured on this host",
          x: names,
          y: runs.map((run) => run.seconds * 1e3),
          marker: { color: PALETTE[0] },
          hovertext: runs.map((run) => format.seconds(run.seconds)),
          text: few ? runs.map((run) => format.seconds(run.seconds)) : [],
          textposition: "auto",
          hoverinfo: "text",
        },
        {
          type: "bar",
          name: "modelled on IPUs",
          x: names,
          y: runs.map(() => estimate.seconds * 1e3),
          marker: { color: PALETTE[1] },
          hovertext: runs.map(() => format.seconds(estimate.seconds)),
          text: few ? runs.map(() => format.seconds(estimate.seconds)) : [],
          textposition: "auto",
          hoverinfo: "text",
        },
      ],
      {
        barmode: "group",
        xaxis: { type: "category" },
        yaxis: { title: { text: "ms (logarithmic)" }, type: "log", tickformat: "~g", dtick: 1 },
      },
    );
  const spans = measuredJobs(report, panel, "Spans of a call");
  return draw().then(spans);
}

/** Calls with the seconds of all spans of a kind together. */
function hostRuns(runs) {
  const kinds = [...new Set(runs.flatMap((run) => Object.keys(run.kinds)))];
  const grid = new Grid(
    [
      { key: "name", title: "Call", width: "minmax(6rem, 1fr)", value: (row) => runs[row].name },
      {
        key: "seconds",
        title: "Time",
        numeric: true,
        width: "6rem",
        value: (row) => runs[row].seconds,
        format: format.seconds,
      },
      ...kinds.map((kind) => ({
        key: kind,
        title: kind,
        numeric: true,
        width: "9rem",
        value: (row) => runs[row].kinds[kind]?.seconds ?? 0,
        hint: `Seconds of all spans of the kind ${kind}, and their number`,
        format: (seconds, row) =>
          runs[row].kinds[kind] ? `${format.seconds(seconds)} / ${runs[row].kinds[kind].count}` : "–",
      })),
    ],
    { label: "Calls", height: 10 * ROW },
  );
  grid.set(range(runs.length));
  return grid;
}
