// Host: what calls took on this machine, beside what the IPU Model expects of IPUs.

function hostTab(report, panel) {
  const { estimate, execution } = report.document;
  const { runs } = execution;
  if (!runs.length) {
    panel.append(empty(`No call was measured. Call the model, or turn on autoReport.outputExecutionProfile. The IPU Model expects ${format.seconds(estimate.seconds)} on IPUs.`));
    return undefined;
  }
  const mean = runs.reduce((sum, run) => sum + run.seconds, 0) / runs.length;
  const div = chart("Measured and modelled time of each call");
  const kinds = [...new Set(runs.flatMap((run) => Object.keys(run.kinds)))];
  panel.append(
    h("div", { class: "tiles-of-figures" },
      figure("mean of the calls that were kept", format.seconds(mean)), figure("modelled on IPUs", format.seconds(estimate.seconds)),
      figure("this host, compared with the model", mean >= estimate.seconds ? `${format.number(mean / estimate.seconds)} × slower` : `${format.number(estimate.seconds / mean)} × faster`),
      figure("samples per second, measured", format.number(estimate.samples / mean)),
      figure("samples per second, modelled", format.number(estimate.throughput)),
      figure("calls in all", format.number(execution.calls ?? runs.length))),
    h("div", { class: "columns" },
      card("Time of a call", div),
      card("What this host did", smallTable(["Call", "Time", ...kinds.map((kind) => `${kind} (sum)`)], runs.map((run) => [
        run.name, format.seconds(run.seconds), ...kinds.map((kind) => (run.kinds[kind] ? `${format.seconds(run.kinds[kind].seconds)} / ${run.kinds[kind].count}` : "–")),
      ]), new Set(["", "", ...kinds].map((_, i) => i).filter((i) => i > 0))),
      h("p", { class: "muted" }, "Sums of all workers, and how many there were: together they can be longer than the call."))));
  const names = runs.map((run) => run.name);
  const draw = () => charts.draw(div, [
    { type: "bar", name: "measured on this host", x: names, y: runs.map((run) => run.seconds * 1e3), marker: { color: PALETTE[0] }, text: runs.map((run) => format.seconds(run.seconds)), textposition: "auto", hoverinfo: "text" },
    { type: "bar", name: "modelled on IPUs", x: names, y: runs.map(() => estimate.seconds * 1e3), marker: { color: PALETTE[1] }, text: runs.map(() => format.seconds(estimate.seconds)), textposition: "auto", hoverinfo: "text" },
  ], { barmode: "group", xaxis: { type: "category" }, yaxis: { title: { text: "ms (logarithmic)" }, type: "log", exponentformat: "power", dtick: 1 } });
  const spans = measuredJobs(report, panel, "Spans of a call");
  return draw().then(spans);
}
