"""How long a large report page takes to open: from the navigation until the first tab is drawn, and each other tab.

python bench/report_page.py [--ipus 16] [--operations 5000] [--times 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "report" / "page"))

from page_view import View, chromium
from synthetic_profiles import synthetic_profile

from poptorch.report.page import write_page

LIMIT_SECONDS, LIMIT_BYTES = 3.0, 30e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ipus", type=int, default=16)
    parser.add_argument("--operations", type=int, default=5000)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        start = time.perf_counter()
        page = write_page(Path(folder), synthetic_profile(chosen.ipus, operations=chosen.operations))
        assert page is not None
        size = page.stat().st_size
        print(
            f"{chosen.ipus} IPUs, {chosen.operations} operations: {size / 1e6:.1f} MB, "
            f"made in {time.perf_counter() - start:.1f} s"
        )
        seconds = [View(driver, page).milliseconds / 1e3 for _ in range(chosen.times)]
        print(f"opens in {statistics.median(seconds):.2f} s (median of {[round(it, 2) for it in seconds]})")
        view = View(driver, page)
        for tab in view.tabs():
            start = time.perf_counter()
            view.open(tab)
            print(f"  {tab:<12} {time.perf_counter() - start:.2f} s")
        print(*view.console(), sep="\n")
    good = statistics.median(seconds) < LIMIT_SECONDS and size < LIMIT_BYTES
    print("within the limits" if good else f"over the limits of {LIMIT_SECONDS} s and {LIMIT_BYTES / 1e6:.0f} MB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
