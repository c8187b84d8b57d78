"""Where instances meet. PopRun serves it, so it outlives each of them."""

from __future__ import annotations

import uuid
from datetime import timedelta

from popdist.poprun.errors import PoprunError

_SECONDS = 60


class Meeting:
    """Two stores of keys: ours, which asks everybody for the secret of the job, and torch's, for programs that use it.

    Torch's own groups of processes need theirs. It knows no secrets, so nothing of ours is written there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        """At which it listens, and at no other."""

        self.name = uuid.uuid4().hex
        """Of the job."""

    def __enter__(self) -> Meeting:
        import torch.distributed as dist

        from poptorch.distributed import addresses, proof
        from poptorch.distributed.meeting_point import MeetingPoint

        self.secret = proof.chosen_secret().decode() or proof.new_secret()
        try:
            self._point = MeetingPoint(addresses.listen(self.address, 0), self.secret.encode())
            listening = addresses.listen(self.address, 0)
        except OSError as error:
            raise PoprunError(f"The instances cannot meet at {self.address}: {error}.") from error
        self.store = f"{self.name} {self.address}:{self._point.port}"
        """What instances are told."""

        self.torch_port = int(listening.getsockname()[1])
        """Where torch's store listens."""

        self._torch_store = dist.TCPStore(  # type: ignore[attr-defined]
            self.address, self.torch_port, is_master=True, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )  # fmt: skip
        return self

    def __exit__(self, *unused: object) -> None:
        del self._torch_store
        self._point.close()
