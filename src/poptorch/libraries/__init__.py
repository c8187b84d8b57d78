"""Which library multiplies matrices on this machine.

torch brings two: MKL, which its own operators call for float32, and oneDNN. On processors with AVX-512 that are not
Intel's, MKL takes its road for AVX2, at half the speed of the other; on Intel's, and with AVX2 and no more, it is the
faster one. So a few products are timed once for each machine (:mod:`~poptorch.libraries.calibration`), and every
product of a program is decided from what was kept of that (:mod:`~poptorch.libraries.choice`).
"""
