// Reading the packed data: see packing.py for the layout.

const ARRAYS = {
  u8: Uint8Array,
  i16: Int16Array,
  u16: Uint16Array,
  i32: Int32Array,
  u32: Uint32Array,
  f32: Float32Array,
  f64: Float64Array,
};

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** The content of a packed script element; it is taken out of the page, for the text is not needed again. */
async function unpacked(element) {
  const packed = new Blob([bytesOf(element.textContent.trim())]);
  element.remove();
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function unpackedText(element) {
  return new TextDecoder().decode(await unpacked(element));
}

/** A table: columns of numbers are typed arrays, columns of texts have codes and levels. */
class Table {
  constructor(rows, columns) {
    this.rows = rows;
    this.columns = columns;
  }

  has(column) {
    return column in this.columns;
  }

  numbers(column) {
    return this.columns[column].values;
  }

  levels(column) {
    return this.columns[column].levels;
  }

  at(column, row) {
    const { values, levels } = this.columns[column];
    return levels ? levels[values[row]] : values[row];
  }

  /** A function from a row to its value; for a column that was left out, to the given one. */
  reader(column, otherwise = "") {
    return this.has(column) ? (row) => this.at(column, row) : () => otherwise;
  }
}

/** Figures, and under `tables` the tables. */
async function contentOf(element) {
  const buffer = await unpacked(element);
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const first = Math.ceil((4 + length) / 8) * 8;
  const tables = {};
  for (const [name, { rows, columns }] of Object.entries(header.tables)) {
    const made = {};
    for (const [column, it] of Object.entries(columns)) {
      made[column] = { values: new ARRAYS[it.type](buffer, first + it.offset, it.length), levels: it.levels };
    }
    tables[name] = new Table(rows, made);
  }
  return { ...header.figures, tables };
}

/** What is known after the compilation, together with what calls add. */
async function reportOf(model, calls) {
  const [fixed, added] = await Promise.all([contentOf(model), contentOf(calls)]);
  const { execution, ...figures } = added;
  return {
    ...fixed,
    ...figures,
    document: { ...fixed.document, execution },
    tables: { ...fixed.tables, ...added.tables },
  };
}

const range = (count) => Uint32Array.from({ length: count }, (_, i) => i);

/** The number that an IPU bears, for its place among those of a replica. */
const ipuName = (report, place) => (place < 0 ? "all" : `IPU ${report.document.memory.ipus[place].ipu}`);
const ipuCount = (report) => report.document.memory.ipus.length;

/** The innermost module of a layer such as "layers.0/layers.0.attn". */
const moduleName = (layer) => layer.slice(layer.lastIndexOf("/") + 1);
