"""What every runner is to the other ranks: a name, a phase, and one agreement a step, or nobody to agree."""

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from oproj_pass.errors import EagerStepError
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.phase import Phase


class Lockstep:
    """The ground of a runner; ``_ORDER``: in which order its methods are called, for messages."""

    _ORDER: ClassVar[str]
    name: str
    phase: Phase
    _peers: Peers | None

    @property
    def armed(self) -> bool:
        """Whether steps are agreed and guarded: the group has more than one rank."""
        return self._peers is not None

    @property
    def num_agreements(self) -> int:
        """Collectives this runner issued on the CPU, one a step; equal on every rank of the group."""
        return self._peers.num_agreements if self._peers else 0

    @property
    def last_step(self) -> AgreedStep | None:
        """What the group agreed on last; None before the first time and with one rank."""
        return self._peers.last if self._peers else None

    def _in_step(self) -> AbstractContextManager[None]:
        """Surrounds what runs after the group has agreed; without a group nobody has agreed on anything."""
        return self._peers.rows_agreed if self._peers else nullcontext()

    def _failing_together(self, doing: str, *, runs: bool) -> AbstractContextManager[None]:
        """Surrounds what every rank does alike; ``runs``: in step, with collectives of the model."""
        return self._peers.failing_together(doing, runs=runs) if self._peers else nullcontext()

    def _require_phase(self, phase: Phase, method: str) -> None:
        if self._peers is not None:
            self._peers.require_going()
        if self.phase is not phase:
            raise EagerStepError(
                f"{self.name}: {method} needs phase {phase.name}, the runner is in {self.phase.name}. Call "
                f"{self._ORDER}."
            )
