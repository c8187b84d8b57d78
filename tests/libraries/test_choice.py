"""What is decided about a product, from a calibration that is not this machine's."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from poptorch.errors import Error
from poptorch.libraries import calibration, choice, onednn
from poptorch.libraries.calibration import KINDS, Calibration
from poptorch.libraries.choice import MKL_ALONE, Libraries, Library, MatrixProduct, libraries_for

LARGE = MatrixProduct(512, 512, 512)
SMALL = MatrixProduct(8, 8, 8)


def calibrated(gain, threads: int = 1) -> Libraries:
    """The choice on a machine where ``gain(kind, rows, terms, columns)`` was measured."""
    gains = tuple(
        (kind.name, tuple(math.log2(gain(kind, *sizes)) for sizes in itertools.product(kind.sizes, repeat=3)))
        for kind in KINDS
    )
    return Libraries(Library.MKL, Calibration(gains), threads)


def test_the_faster_library_is_chosen():
    assert calibrated(lambda *_: 2.0).choose(LARGE) is Library.ONEDNN
    assert calibrated(lambda *_: 0.5).choose(LARGE) is Library.MKL
    assert calibrated(lambda *_: 1.05).choose(LARGE) is Library.MKL, "too little to be sure"


def test_products_between_those_measured_are_interpolated():
    libraries = calibrated(lambda kind, rows, terms, columns: 0.5 if rows == min(kind.sizes) else 2.0)
    assert libraries.calibration.gain(KINDS[0], (8, 512, 512)) == -1.0
    assert libraries.calibration.gain(KINDS[0], (64, 512, 512)) == 1.0
    half_way = math.sqrt(8 * 64)
    assert libraries.calibration.gain(KINDS[0], (half_way, 512, 512)) == pytest.approx(0.0)
    assert libraries.calibration.gain(KINDS[0], (1, 512, 512)) == -1.0, "beyond the grid, what is nearest counts"


def test_threads_share_the_longer_side():
    def gain(kind, rows, terms, columns):
        return 0.5 if rows <= 64 else 2.0

    product = MatrixProduct(512, 512, 64)
    assert calibrated(gain).choose(product) is Library.ONEDNN
    assert calibrated(gain, threads=8).choose(product) is Library.MKL


def test_layout_and_batch_choose_the_kind():
    def fast(name):
        return calibrated(lambda kind, *_: 2.0 if kind.name == name else 0.5)

    x, w = torch.empty(512, 512), torch.empty(512, 512)
    assert fast("right transposed").takes_onednn(x, w.t())
    assert not fast("right transposed").takes_onednn(x, w)
    assert fast("left transposed").takes_onednn(x.t(), w)
    batch = torch.empty(8, 128, 128)
    assert fast("batch").takes_onednn(batch, batch)
    assert fast("batch, right transposed").takes_onednn(batch, batch.mT)
    assert fast("right packed").choose(MatrixProduct(512, 512, 512, (False, True), packed=True)) is Library.ONEDNN


def test_small_products_and_other_types_stay_with_torch(monkeypatch):
    libraries = calibrated(lambda *_: 9.0)
    assert libraries.choose(SMALL) is Library.MKL
    double = torch.empty(512, 512, dtype=torch.float64)
    assert not libraries.takes_onednn(double, double)
    monkeypatch.setenv("POPTORCH_PRODUCTS", "auto")
    monkeypatch.setattr(choice, "calibration", lambda: pytest.fail("nobody needs to know the machine"))
    assert libraries_for([SMALL], 1) == MKL_ALONE


def test_the_user_chooses(monkeypatch):
    monkeypatch.setenv("POPTORCH_PRODUCTS", "onednn")
    assert libraries_for([], 1).choose(SMALL) is (Library.ONEDNN if onednn.is_there() else Library.MKL)
    monkeypatch.setenv("POPTORCH_PRODUCTS", "mkl")
    assert libraries_for([LARGE], 1) == MKL_ALONE
    monkeypatch.setenv("POPTORCH_PRODUCTS", "blis")
    with pytest.raises(Error, match="POPTORCH_PRODUCTS is 'blis'; use 'mkl' or 'onednn' or 'auto'"):
        libraries_for([LARGE], 1)


def test_less_exact_products_are_torchs_own(monkeypatch):
    monkeypatch.setenv("POPTORCH_PRODUCTS", "onednn")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert libraries_for([LARGE], 1) == MKL_ALONE


def test_a_calibration_is_made_once_and_kept(monkeypatch, tmp_path):
    """Not for this machine's speed: what was measured first decides, whatever would be measured now."""
    measured = []

    def measure():
        measured.append(1)
        return Calibration(tuple((kind.name, (float(len(measured)),) * len(kind.sizes) ** 3) for kind in KINDS), 0.5)

    monkeypatch.setattr(calibration, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setattr(onednn, "is_there", lambda: True)
    fresh = calibration.calibration.__wrapped__
    first = fresh()
    assert fresh() == first
    assert len(measured) == 1
    calibration.file_of_machine().write_text("{")
    assert fresh() != first, "a damaged file is measured anew"
    assert fresh().gain(KINDS[0], (64, 64, 64)) == 2.0
    assert len(measured) == 2


def test_nothing_is_chosen_where_nothing_can_be_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(calibration, "state_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(calibration, "measure", lambda: calibrated(lambda *_: 2.0).calibration)
    monkeypatch.setattr(onednn, "is_there", lambda: True)
    assert calibration.calibration.__wrapped__() is None


@pytest.mark.skipif(not onednn.is_there(), reason="this torch has no oneDNN that can be called")
def test_measuring_covers_every_kind(monkeypatch):
    monkeypatch.setattr(calibration, "SIZES", (8, 16))
    monkeypatch.setattr(calibration, "BATCHED_SIZES", (8, 16))
    measured = calibration.measure()
    assert [name for name, _ in measured.gains] == [kind.name for kind in KINDS]
    assert all(len(values) == 8 and all(map(math.isfinite, values)) for _, values in measured.gains)


@pytest.mark.skipif(not onednn.is_there(), reason="this torch has no oneDNN that can be called")
@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_are_right_in_every_layout(transposed, batch):
    def matrix(rows, columns, swapped):
        return torch.randn(*batch, columns, rows).mT if swapped else torch.randn(*batch, rows, columns)

    left, right = matrix(9, 20, transposed[0]), matrix(20, 7, transposed[1])
    exact = left.double() @ right.double()
    torch.testing.assert_close(onednn.matmul(left, right).double(), exact, atol=1e-5, rtol=1e-5)
    total = torch.randn(*batch, 9, 7)
    expected = 0.5 * total.double() + 0.25 * exact
    onednn.matmul_into(left, right, total, 0.5, 0.25)
    torch.testing.assert_close(total.double(), expected, atol=1e-5, rtol=1e-5)
    unwritten = torch.full((*batch, 9, 7), math.nan)
    onednn.matmul_into(left, right, unwritten, 0.0, 1.0)
    torch.testing.assert_close(unwritten.double(), exact, atol=1e-5, rtol=1e-5)
    odd = torch.randn(*batch, 9, 40)[..., ::2]
    torch.testing.assert_close(onednn.matmul(odd, right), odd @ right, atol=1e-4, rtol=1e-4)
