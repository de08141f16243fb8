"""A projection in two steps behind an attention that both Ascend compilers lower."""

import torch

from tests.support.grouped import GroupedAttention


class Grouped(GroupedAttention):
    """With the attention written out."""

    def attend(self, heads):
        """As the operators of the softmax and of two products."""
        return torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads
