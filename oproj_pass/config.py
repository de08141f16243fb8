"""The backend's options: ``torch.compile(model, backend="oproj_npu", options={...})``.

Validates what can be judged without a model; what needs the graph or the process group is checked where they
are at hand.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch.distributed import ProcessGroup

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.capture import CapturePlan
from oproj_pass.errors import ConfigError
from oproj_pass.passes import STRATEGIES
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option
from oproj_pass.passes.strategies.exchange import Reduce
from oproj_pass.plan_options import with_placement_of_plan
from oproj_pass.role_options import FINE_GRAINED, AllOrByRole, for_role, require_roles, with_sizes_spelled_out
from oproj_pass.suggestion import suggestion
from oproj_pass.validation import wrong_fields

Size = int | Literal["auto"]
Globs = tuple[str, ...]
Count = Annotated[int, Field(ge=0)]


class OProjConfig(BaseModel):
    """How to shard attention output projections and their family. Immutable.

    A wrong field raises ``ConfigError``.

    The four sizes may also be given as one mapping, ``finegrained_tp_config``, in vllm-ascend's spelling; a
    size that it leaves out is 0, and one that is given in both places is an error.

    Attributes:
        oproj_tensor_parallel_size: ranks that share one projection, N. ``"auto"``: the largest of 8, 4, 2
            that divides the world and every K. 0: off, the graph is untouched. 1: report only.
        mlp_tensor_parallel_size: ranks that share each MLP's weights, 0 (off), 1, N or ``"auto"`` likewise.
        lmhead_tensor_parallel_size: ranks that share the LM head's weight; its vocabulary is padded.
        embedding_tensor_parallel_size: ranks that share the table of an embedding; padded too.
        inner_backend: the Dynamo backend that compiles the rewritten graph, by name or as a callable.
            ``"auto"``: ``npugraph_ex`` on npu, ``inductor`` on cuda, ``eager`` on cpu.
        inner_options: that backend's own options, as ``torch.compile`` takes them; for ``npu`` (torchair) the
            fields of its ``CompilerConfig``, dotted or nested (``{"debug.run_eagerly": True}``).
        group: the ranks to shard over; by default consecutive ranks of the world, N at a time.
        include: module-path globs (``"model.layers.*"``); if given, only matching modules are taken. For all
            roles, or by role: ``{"mlp": "model.layers.*"}`` leaves the others as if nothing was given.
        exclude: module-path globs of what is left alone; for all roles, or by role.
        attention_ops: custom operators (``"library::name"``) that count as attention.
        expected_sites: raise unless each compiled graph holds exactly this many sites, of all roles together,
            and there are ranks to share them; or a number for each of the roles that are named.
        strategy: how a weight is cut: ``"row"`` (along its inputs), ``"column"`` (along its outputs),
            ``"grid"`` (along both), ``"group"`` (both weights of a projection in two steps, whose default it
            is), ``"auto"`` (what sends the fewest bytes). A name for the output projections, or a mapping
            from module-path globs and roles to names; a glob goes before a role.
        grid: the shape (a, b) of ``"grid"``, a * b = N: inputs cut in a parts, outputs in b. By default what
            sends the fewest bytes.
        reduce: how partial sums become one: ``"scatter"`` (reduce_scatter), ``"exchange"`` (all_to_all, and a
            sum in rank order, half precision added up in float32), ``"auto"`` (what takes the group less
            time, measured at compile time).
        chunks: exchange a step's rows in so many parts, one part's exchange under another's product (on a
            side stream under npugraph_ex and torchair). Rows
            stay together where that cannot pay (few bytes, a symbolic number of rows, a ``capacity``), and
            the log says so. ``"auto"``: 1, 2 or 4, what takes the group less time, measured at compile time.
        release_weights: free the full weights once their slices are cut.
        reduce_dtype: the type partial sums are reduced in (``"float32"``); by default the product's own.
        fuse: ``"mc2"`` computes and reduces partial products with one operator on Ascend chips that allow it;
            where they do not, the log says why.
        overlap: exchange on a side stream beside work that does not need the result (an MLP that reads the
            attention's own input), under npugraph_ex and torchair.
        agree_on_rows: compare the ranks' row counts at each call of a compiled graph, on the CPU, and raise
            on every rank where they differ; without it they abort a process, hang, or give garbage.
            ``DecodeRunner`` and vLLM agree on them themselves; with ``capacity`` there is nothing to compare.
        check_uniform: compare the ranks' row counts before each exchange (a debugging aid).
        capacity: rows of every exchange, each rank's own filled up with zeros: for engines that do not pad
            their steps to a common size. By default an exchange has the rows of the step.
        plan: the capture plan in force; one that does not cover the largest step turns sharding off. What it
            names for a size (``strategy``, ``grid``, ``reduce``, ``chunks``) goes before the option.
        timeout: seconds that a rank waits for its peers to bring the same graph, and to compile it.
        step_timeout: seconds that a rank waits for its peers to make the same call (see ``agree_on_rows``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    oproj_tensor_parallel_size: Size = "auto"
    mlp_tensor_parallel_size: Size = 0
    lmhead_tensor_parallel_size: Size = 0
    embedding_tensor_parallel_size: Size = 0
    inner_backend: str | Callable[..., Any] = "auto"
    inner_options: Mapping[str, Any] = {}
    group: ProcessGroup | None = None
    include: AllOrByRole[Globs] = ()
    exclude: AllOrByRole[Globs] = ()
    attention_ops: Globs = ()
    expected_sites: AllOrByRole[Count] | None = None
    strategy: str | Mapping[str, str] | None = None
    grid: tuple[int, int] | None = None
    reduce: Reduce | Literal["auto"] = "scatter"
    chunks: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    release_weights: bool = True
    reduce_dtype: torch.dtype | None = None
    fuse: Literal["mc2"] | None = None
    overlap: bool = False
    agree_on_rows: bool = True
    check_uniform: bool = False
    capacity: int | None = Field(default=None, ge=1)
    plan: CapturePlan | None = None
    timeout: float = Field(default=600.0, gt=0)
    step_timeout: float = Field(default=60.0, gt=0)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**with_placement_of_plan(with_sizes_spelled_out(options)))
        except ValidationError as error:
            raise ConfigError("\n".join(_explained(error))) from None

    @classmethod
    def from_options(cls, options: "Mapping[str, Any] | OProjConfig | None") -> "OProjConfig":
        """The configuration behind ``torch.compile``'s ``options``, or an already built one."""
        if isinstance(options, cls):
            return options
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"options must be a mapping or OProjConfig, got {type(options).__name__}")
        return cls(**(options or {}))

    @property
    def sizes(self) -> dict[str, Size]:
        """The size of each role, as configured."""
        return {role: getattr(self, size_option(role)) for role in ROLE_TITLES}

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that are looked for: those whose size is not 0."""
        return tuple(role for role, size in self.sizes.items() if size != 0)

    def globs(self, role: str) -> tuple[Globs, Globs]:
        """``include`` and ``exclude`` for one role."""
        return for_role(self.include, role, ()), for_role(self.exclude, role, ())

    @field_validator(*map(size_option, ROLE_TITLES), mode="before")
    @classmethod
    def _whole_number_of_ranks(cls, value: Any) -> Any:
        if value == "auto":
            return value
        if isinstance(value, bool) or not str(value).isdigit():
            raise ValueError("'auto' or a whole number of ranks, 0 (off) or more")
        return int(value)

    @field_validator("include", "exclude", "attention_ops", mode="before")
    @classmethod
    def _several_strings(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: cls._several_strings(globs) for name, globs in value.items()}
        return (value,) if isinstance(value, str) else value

    @field_validator("include", "exclude", "expected_sites")
    @classmethod
    def _by_known_roles(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            require_roles(value)
        return value

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, value: Any) -> Any:
        for name in value.values() if isinstance(value, Mapping) else [value]:
            if name not in (None, AUTO, *STRATEGIES):
                raise ValueError(f"one of {', '.join([*STRATEGIES, AUTO])}, got {name!r}")
        return value

    @field_validator("plan")
    @classmethod
    def _known_strategies(cls, value: CapturePlan | None) -> CapturePlan | None:
        for size, named in value.strategies if value else ():
            if named.strategy not in (None, AUTO, *STRATEGIES):
                known = ", ".join([*STRATEGIES, AUTO])
                raise ValueError(f"for size {size} a strategy of {known}, got {named.strategy!r}")
        return value

    @field_validator("grid")
    @classmethod
    def _two_dimensions(cls, value: Any) -> Any:
        if value is not None and min(value) < 2:
            raise ValueError("two numbers of ranks above 1, along the inputs and along the outputs")
        return value

    @field_validator("attention_ops")
    @classmethod
    def _qualified_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name.count("::") != 1:
                raise ValueError(f"qualified operator names such as 'vllm::attention', got {name!r}")
        return value

    @field_validator("inner_backend")
    @classmethod
    def _not_itself(cls, value: Any) -> Any:
        if value == "oproj_npu":
            raise ValueError("another Dynamo backend: oproj_npu cannot compile its own output")
        return value

    @field_validator("reduce_dtype", mode="before")
    @classmethod
    def _floating_type(cls, value: Any) -> Any:
        dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
        if dtype is None and value is None:
            return None
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
            raise ValueError("float16, bfloat16, float32 or float64, the types collectives can sum")
        return dtype


def _explained(error: ValidationError) -> Iterator[str]:
    known = [*OProjConfig.model_fields, FINE_GRAINED]
    for field, value, required in wrong_fields(error):
        if field.partition("[")[0] in known:
            yield f"option {field} = {value!r}: {required}"
        else:
            yield f"unknown option {field!r}: {suggestion(field, known)}"
