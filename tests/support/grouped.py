"""An attention whose heads are projected group by group and then joined, in the spellings that models use."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.support import quantised

GROUPS, HEAD_DIM, RANK, HIDDEN = 4, 8, 16, 32
HEADS = 2 * GROUPS
GROUP_FEATURES = HEADS * HEAD_DIM // GROUPS


def by_bmm(x, weight):
    """As transformers writes it."""
    rows = x.reshape(-1, GROUPS, GROUP_FEATURES).transpose(0, 1)
    y = torch.bmm(rows, weight.view(GROUPS, -1, GROUP_FEATURES).transpose(1, 2))
    return y.transpose(0, 1).reshape(*x.shape[:-2], GROUPS, -1).flatten(-2)


def by_einsum(x, weight):
    """As DeepSeek's own model does."""
    return torch.einsum("bsgd,grd->bsgr", x, weight.view(GROUPS, RANK, -1)).flatten(2)


def by_weight_first(x, weight):
    """The matrices on the left, features in columns."""
    y = torch.matmul(weight.view(GROUPS, RANK, GROUP_FEATURES), x.flatten(0, 1).permute(1, 2, 0))
    return y.permute(2, 0, 1).reshape(*x.shape[:2], -1)


SPELLINGS = {"bmm": by_bmm, "einsum": by_einsum, "weight first": by_weight_first}


class GroupedAttention(nn.Module):
    """x [B, S, heads x d] to [B, S, H]: ``wo_a`` group by group, then ``wo_b``; ``between`` as given."""

    def __init__(self, spelling="bmm", last=nn.Linear, between=None, dtype=torch.float32):
        super().__init__()
        self.project, self.between = SPELLINGS[spelling], between
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.wo_a = nn.Linear(GROUP_FEATURES, GROUPS * RANK, bias=False, dtype=dtype)
            self.wo_b = last(GROUPS * RANK, HIDDEN, dtype=dtype)
        self.eval().requires_grad_(False)

    def forward(self, x):
        heads = x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        heads = self.attend(heads).transpose(1, 2)
        y = self.project(heads.flatten(2).unflatten(-1, (GROUPS, -1)), self.weight())
        return self.wo_b(y if self.between is None else self.between(y))

    def attend(self, heads):
        """Attention among [B, heads, S, d], which are queries, keys and values."""
        return F.scaled_dot_product_attention(heads, heads, heads)

    def weight(self):
        """The groups' matrices, one under the other."""
        return self.wo_a.weight


class DequantisedGroups(GroupedAttention):
    """``wo_a`` in int8, with a scale for each output channel."""

    def __init__(self):
        super().__init__("einsum")
        quantised.Parameters.constant(self, "codes", torch.randint(-127, 128, self.wo_a.weight.shape).char())
        quantised.Parameters.constant(self, "scale", torch.rand(GROUPS * RANK, 1) / 500)
        del self.wo_a

    def weight(self):
        return self.codes.float() * self.scale


def heads_of(*shape, dtype=torch.float32):
    """Queries, keys and values of each token, [.., heads x d]."""
    return torch.randn(*shape, HEADS * HEAD_DIM, dtype=dtype)
