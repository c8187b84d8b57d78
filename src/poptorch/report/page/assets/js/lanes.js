// Bars in lanes along time. However many there are, only as many as can be told apart are drawn: what is narrower than
// a pixel or two is drawn together with its neighbours, and zooming in draws it anew.

const LANE_BARS = 4000; // at most about so many bars in a chart
const LABELLED = 600; // more bars than that go without texts, which take long to draw and are too small to read
const LETTERS = 165; // that fit into its width
const MARGINS = 110; // left and right of the bars, in pixels
const TOGETHER = 6; // a bar for what is narrow is as wide as so many of the narrowest

/**
 * items: {count, lane(i), start(i), length(i), kind(i), name(i), hover(i)}; in each lane ordered by start.
 * options: {lanes: [text], colours: {kind: colour}, axis, value: format, height}
 */
class Lanes {
  constructor(label, items, options) {
    this.items = items;
    this.options = options;
    this.div = chart(label);
    this.div.style.height = `${Math.max(11, 6 + options.lanes.length * 2.2)}rem`;
    this.lanes = options.lanes.map(() => []);
    let end = 0;
    for (let i = 0; i < items.count; i++) {
      this.lanes[items.lane(i)].push(i);
      end = Math.max(end, items.start(i) + items.length(i));
    }
    for (const lane of this.lanes) lane.sort((a, b) => items.start(a) - items.start(b));
    this.full = [0, end || 1];
    this.shown = this.full;
    this.zoom = zoomButtons(this.div, () => this.full);
  }

  draw() {
    return charts.draw(this.div, this.traces(), this.layout(), { plotly_relayout: (change) => this.moved(change) });
  }

  moved(change) {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
    const [from, to] = change["xaxis.autorange"] ? this.full : this.div.layout.xaxis.range.map(Number);
    if (from === this.shown[0] && to === this.shown[1]) return;
    this.shown = [from, to];
    this.draw();
  }

  layout() {
    const { lanes, axis } = this.options;
    return {
      barmode: "overlay",
      hovermode: "closest",
      margin: { t: 40, r: 20, b: 45, l: 90 },
      xaxis: { title: { text: axis }, range: [...this.shown], exponentformat: "SI", separatethousands: true },
      yaxis: {
        tickvals: lanes.map((_, i) => i),
        ticktext: lanes.map((name) => escaped(shortened(name, 22))),
        range: [lanes.length - 0.5, -0.5],
        fixedrange: true,
        showgrid: false,
        zeroline: false,
      },
    };
  }

  traces() {
    const byKind = new Map();
    const bar = (lane, start, length, kind, text, hover) => {
      if (!byKind.has(kind)) {
        byKind.set(kind, {
          type: "bar",
          orientation: "h",
          name: kind,
          x: [],
          base: [],
          y: [],
          width: 0.85,
          text: [],
          hovertext: [],
          hoverinfo: "text",
          textposition: "inside",
          insidetextanchor: "start",
          textangle: 0,
          constraintext: "none",
          cliponaxis: true,
          textfont: { size: 11, color: "#10151b" },
          marker: { color: this.options.colours[kind] ?? "#7f8c99", line: { width: 0 } },
        });
      }
      const trace = byKind.get(kind);
      trace.x.push(length);
      trace.base.push(start);
      trace.y.push(lane);
      trace.text.push(text);
      trace.hovertext.push(hover);
    };
    this.lanes.forEach((rows, lane) => this.drawLane(rows, lane, bar));
    const order = Object.keys(this.options.colours);
    const found = [...byKind.values()].sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
    if (found.reduce((sum, trace) => sum + trace.x.length, 0) > LABELLED)
      for (const trace of found) trace.textposition = "none";
    if (found.length > 0) return found;
    return [{ type: "bar", orientation: "h", x: [0], y: [0], hoverinfo: "skip", showlegend: false }];
  }

  drawLane(rows, lane, bar) {
    const { items, options } = this;
    const [from, to] = this.shown;
    // As many as the chart really has: narrower bars would cover each other, and the last one drawn would be all one sees.
    const wide = this.div.clientWidth ? this.div.clientWidth - MARGINS : 900;
    const pixels = Math.max(40, Math.min(900, wide, LANE_BARS / this.lanes.length));
    const least = (to - from) / pixels;
    let group = null;
    const flush = () => {
      if (group) this.drawGroup(group, lane, bar);
      group = null;
    };
    for (const i of rows) {
      const start = items.start(i),
        length = items.length(i),
        end = start + length;
      if (end < from || start > to) continue;
      if (length >= 2 * least) {
        flush();
        const room = (length / (to - from)) * LETTERS;
        const name = items.name(i);
        const text = name.length <= room ? name : room > 4 ? shortened(name, Math.floor(room)) : "";
        bar(lane, start, length, items.kind(i), escaped(text), items.hover(i));
        continue;
      }
      if (group && (start - group.end > least || end - group.start > TOGETHER * least)) flush();
      group ??= { start, end, count: 0, kinds: new Map(), first: i };
      group.end = Math.max(group.end, end);
      group.count += 1;
      group.kinds.set(items.kind(i), (group.kinds.get(items.kind(i)) ?? 0) + length);
    }
    flush();
  }

  /** What is too narrow, as one bar for each kind, as wide as its share; their order in it means nothing. */
  drawGroup(group, lane, bar) {
    const { items, options } = this;
    const kinds = [...group.kinds].sort(([, a], [, b]) => b - a);
    const busy = kinds.reduce((sum, [, length]) => sum + length, 0),
      width = group.end - group.start;
    const shares = kinds.map(([kind, length]) => `${kind} ${format.share(length / busy)}`).join("<br>");
    const hover =
      group.count === 1
        ? items.hover(group.first)
        : `${group.count} together, ${options.value(width)}<br>${shares}<br>Zoom in to see them`;
    let now = group.start;
    for (const [kind, length] of kinds) {
      const part = busy > 0 ? (width * length) / busy : width / kinds.length;
      bar(lane, now, part, kind, "", hover);
      now += part;
    }
  }
}
