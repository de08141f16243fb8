"""Which projections are taken: policies, the weight's own rules, and weights with several readers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes.graph.provenance import normalise_path

H = 32
X = torch.randn(2, 5, H)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(H, H)

    def forward(self, x):
        return x + self.out(F.scaled_dot_product_attention(x, x, x))


class Decoder(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for name in names or ("first", "second"):
            setattr(self, name, Attention())

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x


@pytest.mark.parametrize(
    ("policy", "taken"),
    [
        ({}, ["first.out", "second.out"]),
        ({"include": ["first.*"]}, ["first.out"]),
        ({"include": ["first.*", "*.out"]}, ["first.out", "second.out"]),
        ({"exclude": ["*nd.out"]}, ["first.out"]),
        ({"include": ["*"], "exclude": ["first.*"]}, ["second.out"]),
        ({"include": ["out"]}, []),
    ],
)
def test_globs_choose_whole_module_paths(policy, taken, search):
    found = search(Decoder(), X, search=policy)
    assert found.paths == taken
    left = {"first.out", "second.out"} - set(taken)
    assert set(found.missed) == left
    assert all("glob" in reason for reason in found.missed.values())


@pytest.mark.parametrize("draft", ["mtp", "mtp_block", "draft_model", "eagle_head"])
def test_leaves_draft_layers_alone_until_named(draft, search):
    model = Decoder("first", draft)
    model.add_module("model", Decoder("first", draft))
    del model._modules["first"], model._modules[draft]
    found = search(model, X)
    assert found.paths == ["model.first.out"]
    assert "draft" in found.missed[f"model.{draft}.out"]
    torch._dynamo.reset()
    assert search(model, X, search={"include": [f"model.{draft}.*"]}).paths == [f"model.{draft}.out"]


def test_counts_a_named_custom_operator_as_attention(search):
    @torch.library.custom_op("oproj_test::mix", mutates_args=())
    def mix(x: torch.Tensor) -> torch.Tensor:
        return x.flip(1)

    mix.register_fake(torch.empty_like)

    class Custom(Attention):
        def forward(self, x):
            return x + self.out(torch.ops.oproj_test.mix(x))

    assert search(Custom(), X).paths == []
    torch._dynamo.reset()
    attention_ops = frozenset({torch.ops.oproj_test.mix})
    assert search(Custom(), X, search={"attention_ops": attention_ops}).paths == ["out"]


@torch.library.custom_op("oproj_test::attend_into", mutates_args=("out",))
def attend_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(F.scaled_dot_product_attention(x, x, x).reshape(out.shape))


@attend_into.register_fake
def _(x, out):
    return None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(10, 4, 8),
        lambda x: torch.zeros(10, 4, 8),
        lambda x: x.new_empty(10, 4, 8),
        lambda x: torch.empty_like(x),
    ],
    ids=["empty", "zeros", "new_empty", "empty_like"],
)
def test_follows_an_attention_that_fills_a_buffer(make, search):
    class Filling(Attention):
        def forward(self, x):
            out = make(x)
            view = out.view(2, 5, H)
            torch.ops.oproj_test.attend_into(x, out)
            return x + self.out(view)

    attention_ops = frozenset({torch.ops.oproj_test.attend_into})
    found = search(nn.Sequential(Filling(), Filling()), X, search={"attention_ops": attention_ops})
    assert found.paths == ["0.out", "1.out"]


def test_one_weight_at_two_sites_is_taken_at_both(search):
    model = Decoder()
    model.second.out.weight = model.first.out.weight
    found = search(model, X)
    assert found.paths == ["first.out", "second.out"]
    assert len({site.weight for site in found.sites}) == 1


def test_a_looped_block_is_taken_at_every_turn(search):
    block = Attention()
    found = search(nn.Sequential(block, block, block), X)
    assert len(found.sites) == 3
    assert len({site.weight for site in found.sites}) == 1


def test_refuses_a_weight_that_something_else_reads(search):
    class Tied(Decoder):
        def forward(self, x):
            return super().forward(x) @ self.second.out.weight

    found = search(Tied(), X)
    assert found.paths == ["first.out"]
    assert "also read by `matmul`" in found.missed["second.out"]


def test_refuses_a_weight_whose_storage_another_parameter_shares(search):
    class Shared(Decoder):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(H, H)
            self.head.weight = nn.Parameter(self.second.out.weight.data)

        def forward(self, x):
            return self.head(self.second(self.first(x)))

    found = search(Shared(), X)
    assert found.paths == ["first.out"]
    assert "also read by `head.weight`" in found.missed["second.out"]


def test_refuses_a_weight_that_is_a_part_of_a_larger_storage(search):
    model = Decoder()
    model.first.out.weight = nn.Parameter(torch.randn(3, H, H)[1])
    found = search(model, X)
    assert found.paths == ["second.out"]
    assert "larger storage" in found.missed["first.out"]


def test_a_tied_embedding_and_head_are_no_projections(search):
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(10, H), Decoder()
            self.head = nn.Linear(H, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.body(self.embed(ids)))

    assert search(Language(), torch.arange(10).view(2, 5)).paths == ["body.first.out", "body.second.out"]


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

    def __init__(self, data):
        self.data_inside = data

    def __tensor_flatten__(self):
        return ["data_inside"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapped(inner["data_inside"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = torch.utils._pytree.tree_map_only(cls, lambda x: x.data_inside, (args, kwargs or {}))
        result = function(*plain[0], **plain[1])
        return cls(result) if function is torch.ops.aten.detach.default else result


def test_refuses_a_tensor_subclass_and_names_its_type(search):
    model = Decoder()
    model.first.out.weight = nn.Parameter(Wrapped(torch.randn(H, H)), requires_grad=False)
    found = search(model, X)
    assert found.paths == ["second.out"]
    assert "type Wrapped" in found.missed["first.out"]


def test_refuses_a_scaled_addmm(search):
    class Scaled(Attention):
        def forward(self, x):
            y = F.scaled_dot_product_attention(x, x, x).flatten(0, 1)
            return torch.addmm(self.out.bias, y, self.out.weight, alpha=2.0)

    (miss,) = search(Scaled(), X).misses
    assert "alpha or beta is not 1" in miss.reason


TORCHS_OWN = {
    "MultiheadAttention": (lambda: nn.MultiheadAttention(H, 4, batch_first=True), (X, X, X)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(H, 4, 48, batch_first=True), (X,)),
}


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def fast_path(request):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("name", TORCHS_OWN)
def test_says_that_torchs_own_modules_project_inside_one_operator(name, fast_path, search):
    make, inputs = TORCHS_OWN[name]
    found = search(make(), *inputs)
    assert found.sites == []
    (miss,) = found.misses
    assert "projected inside one fused operator" in miss.reason
    assert miss.nbytes == 4 * H * H


@pytest.mark.parametrize("name", TORCHS_OWN)
@pytest.mark.parametrize("fast_path", [False], indirect=True)
def test_takes_the_projection_of_torchs_own_modules_where_they_come_apart(name, fast_path, search_aten):
    make, inputs = TORCHS_OWN[name]
    for found in search_aten(make(), *inputs):
        assert [site.in_features for site in found.sites] == [H]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("L['self']._modules['layers']._modules['0'].attn", "layers.0.attn"),
        ("L['args'][0].model.layers.0", "model.layers.0"),
        ("L['self']", ""),
        ("G['model'].layers[3].attn", "layers.3.attn"),
    ],
)
def test_paths_read_alike_whatever_the_root(raw, path):
    assert normalise_path(raw) == path
