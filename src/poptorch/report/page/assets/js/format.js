// Numbers for people.

const plain = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });

const format = {
  number: (value) =>
    value === null || value === undefined ? "–" : Math.abs(value) < 100 ? short.format(value) : plain.format(value),
  cycles: (value) => plain.format(value),
  bytes(value) {
    let size = Math.abs(value);
    const sign = value < 0 ? "−" : "";
    for (const unit of ["B", "KiB", "MiB"]) {
      if (size < 1024) return `${sign}${unit === "B" ? plain.format(size) : size.toFixed(1)} ${unit}`;
      size /= 1024;
    }
    return `${sign}${size.toFixed(1)} GiB`;
  },
  seconds(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    for (const [factor, unit] of [
      [1, "s"],
      [1e3, "ms"],
      [1e6, "µs"],
    ]) {
      if (size * factor >= 1) return `${short.format(value * factor)} ${unit}`;
    }
    return size === 0 ? "0 s" : `${short.format(value * 1e9)} ns`;
  },
  share: (value) => `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`,
  flops(value) {
    let size = value;
    for (const unit of ["", "k", "M", "G", "T"]) {
      if (size < 1000) return `${short.format(size)}${unit ? ` ${unit}` : ""}`;
      size /= 1000;
    }
    return `${short.format(size)} P`;
  },
  text: (value) => String(value),
};

/** The unit for an axis of bytes up to that many: its size and its name. */
function unitOf(bytes) {
  const power = Math.min(3, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
  return [1024 ** power, ["bytes", "KiB", "MiB", "GiB"][power]];
}

/** Plotly reads a few tags in texts: what comes from the user must not be one of them. */
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const shortened = (text, length = 40) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
