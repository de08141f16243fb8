"""Which rank keeps a key and value of a sequence, and in which slot of its cache, where ranks share a cache.

Positions go to ranks in turn, `interleave` at a time, and each rank fills pages of its own with what it gets:
one page number stands for a page on every rank, so a page number holds `num_ranks * page_size` positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class SlotLayout:
    """How a cache is shared.

    Raises:
        ConfigError: a number is below 1, or `interleave` does not divide `page_size`.
    """

    num_ranks: int
    page_size: int
    interleave: int = 1

    def __post_init__(self) -> None:
        for field in ("num_ranks", "page_size", "interleave"):
            require_int(field, getattr(self, field), minimum=1)
        if self.page_size % self.interleave:
            raise ConfigError(f"interleave={self.interleave} must divide page_size={self.page_size}")

    @property
    def positions_per_page(self) -> int:
        """Positions of a sequence that one page number holds, on all ranks together."""
        return self.num_ranks * self.page_size

    def owner(self, position: int) -> int:
        """The rank that keeps a position of a sequence."""
        return position // self.interleave % self.num_ranks

    def slot(self, position: int, pages: Sequence[int]) -> int:
        """The slot in its owner's cache: `page * page_size + offset`.

        Args:
            position: of the token in its sequence.
            pages: page numbers of the sequence, in order.

        Raises:
            ConfigError: the sequence has no page for that position.
        """
        place, within = divmod(position, self.positions_per_page)
        if not 0 <= place < len(pages):
            raise ConfigError(
                f"position {position} needs page {place + 1} of its sequence, which has {len(pages)}"
            )
        turn = within // (self.interleave * self.num_ranks)
        return pages[place] * self.page_size + turn * self.interleave + within % self.interleave

    def rank_slots(self, rank: int, positions: Sequence[int], pages: Sequence[int]) -> tuple[int, ...]:
        """The slots that `rank` writes for positions of one sequence; -1 for those that other ranks keep."""
        return tuple(
            self.slot(position, pages) if self.owner(position) == rank else -1 for position in positions
        )
