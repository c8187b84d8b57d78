"""``trainingModel``, ``inferenceModel`` and the executor they return.

An executor (``executor``, made by ``wrapping``) is composed of a ``session``, the compiled program on its ``target``;
of the ``host_weights``, which know whether host or device has the newer ones and hear of looks at them from
``instrumentation``; and, for training, of an ``optimizer_link``. ``saving`` and ``stored`` write and read files.
"""
