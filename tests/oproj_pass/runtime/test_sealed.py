"""After capture nothing compiles and nothing runs eager in silence."""

import functools
import sys

import pytest
import torch
from torch import nn

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.errors import EagerStepError
from oproj_pass.runtime import DecodeRunner

TWELVE = plan_capture(StepBound(12, 64), sizes=range(1, 13))


class Gained(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.linear, self.gain, self.breaks = nn.Linear(3, 3), 2, breaks

    def forward(self, x):
        x = self.linear(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return x * self.gain


@pytest.fixture
def compiled(plan, peer):
    """A captured runner around a compiled model, and the model."""

    def build(plan=plan, breaks=False, dynamic=False, fullgraph=False, **options):
        model = Gained(breaks)
        fn = torch.compile(model, backend="eager", dynamic=dynamic, fullgraph=fullgraph)
        runner = DecodeRunner(fn, plan, rows={"x": 0}, **{"group": peer, **options})
        runner.capture({"x": torch.zeros(1, 3)})
        return runner, model

    return build


def num_compilations(code):
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(code))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_twelve_static_sizes_all_run_compiled(compiled, batch, peer, fullgraph):
    runner, model = compiled(TWELVE, fullgraph=fullgraph)
    assert num_compilations(Gained.forward.__code__) == 12
    for num_tokens in range(13):
        peer.num_tokens = 0
        torch.testing.assert_close(runner.step({"x": batch(num_tokens)}), model(batch(num_tokens)))


def test_without_the_raised_limit_later_sizes_would_run_eager(batch):
    fn = torch.compile(Gained(), backend="eager", dynamic=False)
    for num_tokens in range(1, 13):
        fn(batch(num_tokens))
    assert num_compilations(Gained.forward.__code__) == 8


def test_the_recompile_limit_is_raised_for_the_capture_only(compiled):
    before = torch._dynamo.config.recompile_limit
    compiled(TWELVE)
    assert torch._dynamo.config.recompile_limit == before
    assert torch._dynamo.config.fail_on_recompile_limit_hit is False


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("counts", [(1, 2, 0), (2, 1, 1), (0, 16, 1)])
def test_a_batch_of_one_or_none_recompiles_nothing(compiled, batch, peer, dynamic, counts):
    runner, model = compiled(dynamic=dynamic)
    for num_tokens in counts:
        peer.num_tokens = 0
        torch.testing.assert_close(runner.step({"x": batch(num_tokens)}), model(batch(num_tokens)))


@pytest.mark.parametrize("breaks", [False, True])
def test_a_failing_guard_is_refused_by_name(compiled, batch, breaks):
    runner, model = compiled(TWELVE, breaks=breaks)
    runner.step({"x": batch(3)})
    model.gain = 3
    with pytest.raises(EagerStepError, match=r"would recompile.*guard.*gain"):
        runner.step({"x": batch(3)})


def test_a_number_of_the_model_that_changed_is_to_be_a_tensor(compiled, batch):
    runner, model = compiled(plan_capture(StepBound(4, 64), sizes=[4]))
    model.gain = 3
    with pytest.raises(EagerStepError, match=r"`self\.gain` is a Python number.*pass it as a tensor"):
        runner.step({"x": batch(3)})


def test_a_number_that_grows_at_every_call_is_named_at_capture(plan, peer, batch):
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    fn = torch.compile(Counting(), backend="eager", dynamic=False)
    runner = DecodeRunner(fn, plan, rows={"x": 0}, group=peer)
    with pytest.raises(EagerStepError, match=r"`self\.calls` is a Python number.*pass it as a tensor"):
        runner.capture({"x": batch(1)})


def test_alone_a_failing_guard_recompiles(compiled, batch):
    runner, model = compiled(group=None)
    model.gain = 3
    torch.testing.assert_close(runner.step({"x": batch(3)}), model(batch(3)))


def given_up(batch):
    """A compiled model that Dynamo runs eager for good, after twenty shapes."""
    model = Gained()
    fn = torch.compile(model, backend="eager", dynamic=False)
    with torch.inference_mode():
        for num_tokens in range(20, 40):
            fn(batch(num_tokens))
    return fn, model


def test_compiles_a_model_that_dynamo_gave_up(plan, peer, batch):
    fn, model = given_up(batch)
    runner = DecodeRunner(fn, plan, rows={"x": 0}, group=peer)
    runner.capture({"x": batch(1)})
    assert num_compilations(Gained.forward.__code__) == 8 + len(plan.sizes)
    model.gain = 3
    with pytest.raises(EagerStepError, match="would recompile"):
        runner.step({"x": batch(3)})


def test_without_the_runner_a_given_up_model_stays_eager(batch):
    fn, _ = given_up(batch)
    with torch.inference_mode(), torch.compiler.set_stance("fail_on_recompile"):
        fn(batch(3))
    assert num_compilations(Gained.forward.__code__) == 8


def test_refuses_a_model_that_compiles_at_every_call(plan, peer, batch):
    salts = iter(range(100, 1000))
    compiled = torch.compile(lambda x, salt: x + len(salt), backend="eager")
    runner = DecodeRunner(lambda x: compiled(x, "a" * next(salts)), plan, rows={"x": 0}, group=peer)
    with pytest.raises(EagerStepError, match="would recompile"):
        runner.capture({"x": batch(1)})


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "eager_then_compile"])
def test_refuses_a_stance_that_allows_eager(compiled, batch, stance):
    runner, _ = compiled()
    with (
        torch.compiler.set_stance(stance),
        pytest.raises(EagerStepError, match=f"set_stance\\('{stance}'\\)"),
    ):
        runner.step({"x": batch(3)})
    runner.step({"x": batch(3)})


def move_data(model):
    model.linear.weight.data = model.linear.weight.data.clone()


def move_dtype(model):
    model.linear.to(torch.float64)


def replace(model):
    model.linear.weight = nn.Parameter(model.linear.weight.detach().clone())


def remove(model):
    model.linear.bias = None


WRAPS = {
    "the model": lambda model: model,
    "its forward": lambda model: model.forward,
    "a lambda": lambda model: lambda x: model(x),
    "a partial": functools.partial,
    "a method of an engine": lambda model: Engine(model).run,
    "an item of a dict": lambda model: {"decode": lambda x: model(x)}["decode"],
    "a wrapper object": lambda model: Wrapper(model),
    "a decorated function": lambda model: decorated(lambda x: model(x)),
    "a function of a list": lambda model: lambda x, models=[model]: models[0](x),
    "a graph of its forward": lambda model: torch.compile(model.forward, backend="eager", dynamic=False),
    "a graph of a function": lambda model: torch.compile(lambda x: model(x), backend="eager", dynamic=False),
}


class Engine:
    def __init__(self, model):
        self.worker = {"model": model}

    def run(self, x):
        return self.worker["model"](x)


class Wrapper:
    def __init__(self, model):
        self._hidden = (model,)

    def __call__(self, x):
        return self._hidden[0](x)


def decorated(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("move", "wrap"),
    [(move, "the model") for move in (move_data, move_dtype, replace, remove)]
    + [(replace, wrap) for wrap in WRAPS],
)
def test_refuses_a_weight_that_moved_wherever_the_model_is(plan, peer, batch, move, wrap):
    model = Gained()
    runner = DecodeRunner(WRAPS[wrap](model), plan, rows={"x": 0}, group=peer)
    runner.capture({"x": batch(1)})
    move(model)
    with pytest.raises(EagerStepError, match=r"rank 0 cannot replay: linear\.(weight|bias) moved"):
        runner.step({"x": batch(3)})


def test_a_weight_of_a_module_that_did_not_run_may_move(plan, peer, batch):
    model, other = Gained(), Gained()
    runner = DecodeRunner(lambda x: model(x), plan, rows={"x": 0}, group=peer)
    runner.capture({"x": batch(1)})
    replace(other)
    runner.step({"x": batch(3)})


def test_says_so_where_the_model_hides_what_it_runs(plan, peer, caplog):
    def model(x):
        sys.setprofile(None)
        return x

    DecodeRunner(model, plan, rows={"x": 0}, group=peer).capture({"x": torch.zeros(1, 3)})
    assert "replaced this thread's profile hook" in caplog.text


def test_serves_weights_that_were_written_in_place(compiled, batch):
    runner, model = compiled()
    other = Gained()
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(runner.step({"x": batch(3)}), other(batch(3)))


def test_a_static_cache_written_in_place_matches_eager(plan, peer):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(32, 3))

        def forward(self, x, slots):
            self.cache.index_copy_(0, slots, x)
            return x + self.cache.sum(0)

    eager, model = Cached(), Cached()
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    runner = DecodeRunner(compiled, plan, rows={"x": 0, "slots": 0}, pad={"slots": 31}, group=peer)
    runner.capture({"x": torch.zeros(1, 3), "slots": torch.zeros(1, dtype=torch.long)})
    for step in range(5):
        x, slots = torch.randn(2, 3), torch.tensor([2 * step, 2 * step + 1])
        torch.testing.assert_close(runner.step({"x": x, "slots": slots}), eager(x, slots))
    torch.testing.assert_close(model.cache[:31], eager.cache[:31])
    assert eager.cache.abs().sum() > 0
