"""The time of one collective on a machine: from its table, between sizes and ranks, else from its link."""

from dataclasses import dataclass

from oproj_pass.advisor.figures import Basis, Range
from oproj_pass.advisor.interpolate import interpolate
from oproj_pass.advisor.profile import Collective, CollectiveTable, Link, Profile

__all__ = ["Transfer", "transfer_us"]


@dataclass(frozen=True)
class Transfer:
    """One collective of a step: its kind, the ranks in it, and the bytes of one rank's buffer.

    The buffer is the input of an all_to_all and a reduce_scatter and the output of an all_gather, as NCCL's
    performance tests count it.
    """

    collective: Collective
    size: int
    nbytes: int

    @property
    def sent_nbytes(self) -> int:
        """Bytes that leave a rank."""
        return self.nbytes * (self.size - 1) // self.size


def transfer_us(profile: Profile, transfer: Transfer, behind_us: float | None = None) -> tuple[Range, Basis]:
    """Microseconds of a transfer, and whether a measured table or a formula says so.

    ``behind_us``: what a rank computes in front of it, where the profile knows what that changes; by default
    as much as a decode layer does.
    """
    if transfer.size == 1 or transfer.nbytes == 0:
        return Range.exact(0.0), Basis.PREDICTED
    table = profile.collectives.get(transfer.collective)
    if table is not None and _reaches(table, transfer.size):
        return Range.within(_from_table(table, transfer, behind_us), table.error), table.basis
    if profile.link is None:
        # Tables alone: beyond their ranks time goes on as it grew between the last two.
        assert table is not None
        return Range.within(_from_table(table, transfer, behind_us), 2 * table.error), Basis.ASSUMED
    return _from_link(profile.link, transfer), Basis.PREDICTED


def _reaches(table: CollectiveTable, size: int) -> bool:
    return min(table.us) <= size <= max(table.us)


def _from_table(table: CollectiveTable, transfer: Transfer, behind_us: float | None) -> float:
    sizes = sorted(table.us)
    times = [time for size in sizes for time in table.us[size]]
    nbytes = max(transfer.nbytes, table.nbytes[0])  # below the smallest message there is nothing to save
    found = interpolate([sizes, table.nbytes], times, [transfer.size, nbytes])
    if behind_us is None or not table.behind_us:
        return found
    smallest = [time for size in sizes for time in table.smallest_us[size]]
    first, last = table.behind_us[0], table.behind_us[-1]
    usual, here = (
        interpolate([sizes, table.behind_us], smallest, [transfer.size, work])
        for work in (last, min(max(behind_us, first), last))
    )
    return max(found - usual + here, here)  # the wait changes, the bytes do not


def _from_link(link: Link, transfer: Transfer) -> Range:
    peers = transfer.size - 1
    alpha = link.base_us.range + link.peer_us.range * peers
    sent = transfer.nbytes / transfer.size if link.is_mesh else transfer.sent_nbytes
    return alpha + Range.exact(sent / 1e3) / link.gbs.range
