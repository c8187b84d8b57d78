// A table of any length: only the rows in sight are elements of the page.

const ROW = 28; // pixels, as in style.css
const SPARE = 6; // rows above and below what is in sight

/**
 * columns: {key, title, width, value(row), format, numeric, cell(row)}; `value` is for sorting and searching.
 * options: {label, height, sort: [key, descending], sortable, onSelect(row), onKey(event, row), find(query)}; `find` gives
 * the rows for a search and the text about their number, where rows are not just those of a list.
 */
class Grid {
  constructor(columns, options = {}) {
    this.columns = columns;
    this.options = { height: 14 * ROW, sortable: true, label: "Table", ...options };
    this.all = [];
    this.rows = [];
    this.query = "";
    this.sorted = this.options.sort ?? null;
    this.chosen = null;
    this.build();
  }

  build() {
    const { label, onSelect, height } = this.options;
    this.head = h("div", { class: "grid-head", role: "row", "aria-rowindex": "1" });
    this.columns.forEach((column, i) => {
      const cell = h("div", { role: "columnheader", class: column.numeric ? "number" : "", "aria-colindex": i + 1 });
      cell.append(
        this.options.sortable
          ? h(
              "button",
              { type: "button", title: column.hint ?? column.title, onclick: () => this.sort(column) },
              column.title,
            )
          : h("span", { title: column.hint ?? column.title }, column.title),
      );
      column.head = cell;
      this.head.append(cell);
    });
    this.spacer = h("div", {});
    this.body = h(
      "div",
      {
        class: "grid-body",
        role: "rowgroup",
        tabindex: "0",
        "aria-label": `${label}: rows`,
        style: `height:${height}px`,
        onscroll: () => this.show(),
        onkeydown: (event) => this.key(event),
      },
      this.spacer,
    );
    const widths = this.columns
      .map((column) => column.width ?? (column.numeric ? "8rem" : "minmax(10rem, 1fr)"))
      .join(" ");
    this.frame = h(
      "div",
      { class: "grid", role: onSelect ? "grid" : "table", "aria-label": label, style: `--widths:${widths}` },
      h("div", { class: "grid-inner" }, h("div", { role: "rowgroup" }, this.head), this.body),
    );
    this.count = h("span", { class: "grid-count", role: "status" });
    this.search = h("input", {
      type: "search",
      "aria-label": `Search: ${label}`,
      placeholder: "Search",
      oninput: () => {
        this.query = this.search.value;
        this.refresh();
      },
    });
    new ResizeObserver(() => this.show()).observe(this.body);
  }

  /** Rows are numbers, or whatever the columns understand. */
  set(rows) {
    this.all = Array.from(rows);
    this.refresh();
  }

  refresh() {
    const found = (this.options.find ?? ((query) => this.find(query)))(this.query);
    this.rows = found.rows;
    this.count.textContent = found.count;
    if (this.sorted) this.order();
    for (const column of this.columns) {
      if (this.sorted?.[0] === column.key)
        column.head.setAttribute("aria-sort", this.sorted[1] ? "descending" : "ascending");
      else column.head.removeAttribute("aria-sort");
    }
    this.frame.setAttribute("aria-rowcount", this.rows.length + 1);
    this.body.style.height = `${Math.min(this.options.height, Math.max(2, this.rows.length) * ROW)}px`;
    this.body.scrollTop = 0;
    this.show();
  }

  /** Rows with all words of a search in their texts. */
  find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = this.columns.filter((column) => !column.numeric);
    const all = plain.format(this.all.length);
    if (words.length === 0) return { rows: [...this.all], count: `${all} ${this.all.length === 1 ? "row" : "rows"}` };
    const rows = this.all.filter((row) => {
      const text = texts
        .map((column) => column.value(row))
        .join("\n")
        .toLowerCase();
      return words.every((word) => text.includes(word));
    });
    return { rows, count: `${plain.format(rows.length)} of ${all} rows` };
  }

  order() {
    const column = this.columns.find(({ key }) => key === this.sorted[0]);
    const sign = this.sorted[1] ? -1 : 1;
    const keyed = this.rows.map((row) => [column.value(row), row]);
    keyed.sort(
      column.numeric
        ? ([a], [b]) => sign * (a - b)
        : ([a], [b]) => sign * String(a).localeCompare(String(b), "en", { numeric: true }),
    );
    this.rows = keyed.map(([, row]) => row);
  }

  sort(column) {
    const [key, descending] = this.sorted ?? [];
    this.sorted = [column.key, key === column.key ? !descending : Boolean(column.numeric)];
    this.refresh();
  }

  show() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW) - SPARE);
    const last = Math.min(this.rows.length, Math.ceil((this.body.scrollTop + this.body.clientHeight) / ROW) + SPARE);
    this.spacer.style.height = `${this.rows.length * ROW}px`;
    this.spacer.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, i) => this.row(first + i)));
    if (this.rows.length === 0)
      this.spacer.replaceChildren(h("p", { class: "muted", style: "padding:.4rem .5rem" }, "Nothing found."));
  }

  row(index) {
    const row = this.rows[index];
    const { onSelect } = this.options;
    return h(
      "div",
      {
        class: "grid-row",
        role: "row",
        style: `top:${index * ROW}px`,
        "aria-rowindex": index + 2,
        ...(onSelect ? { "aria-selected": String(row === this.chosen), onclick: () => this.choose(index) } : {}),
      },
      this.columns.map((column, i) => {
        const content = column.cell ? column.cell(row) : (column.format ?? format.text)(column.value(row), row);
        return h(
          "div",
          {
            role: onSelect ? "gridcell" : "cell",
            "aria-colindex": i + 1,
            class: column.numeric ? "number" : "",
            title: column.numeric || column.cell ? null : String(column.value(row)),
          },
          content,
        );
      }),
    );
  }

  choose(index) {
    if (index < 0 || index >= this.rows.length) return;
    this.chosen = this.rows[index];
    const top = index * ROW;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    if (top + ROW > this.body.scrollTop + this.body.clientHeight)
      this.body.scrollTop = top + ROW - this.body.clientHeight;
    this.show();
    this.options.onSelect(this.chosen);
  }

  key(event) {
    if (!this.options.onSelect || event.target !== this.body) return;
    const here = this.rows.indexOf(this.chosen);
    const next = {
      ArrowDown: here + 1,
      ArrowUp: here - 1,
      Home: 0,
      End: this.rows.length - 1,
      PageDown: here + 10,
      PageUp: here - 10,
    }[event.key];
    if (next === undefined) {
      this.options.onKey?.(event, this.chosen);
      return;
    }
    event.preventDefault();
    this.choose(Math.max(0, Math.min(next, this.rows.length - 1)));
  }

  /** Search box, number of rows, and the table. */
  parts(...more) {
    return [controls(h("label", {}, this.search), ...more, this.count), this.frame];
  }
}

/** A column of a table of the report. */
const column = (table, key, title, extra = {}) => ({
  key,
  title,
  value: table.reader(key, extra.numeric ? 0 : ""),
  ...extra,
});
const numeric = (table, key, title, shown, extra = {}) =>
  column(table, key, title, { numeric: true, format: shown, ...extra });
