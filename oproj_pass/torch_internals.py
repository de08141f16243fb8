"""The one list of torch's private names that this project stands on, and the check that this torch has them.

Private names are no stable interface: a release of torch may drop any. A package is checked before it imports
what it uses of them, so that all that is missing is said at once, with torch's version. Imports torch only to
check. `tests/package/test_torch_internals.py` keeps the list complete.
"""

import logging
from functools import cache
from importlib import import_module

from oproj_pass.errors import TorchVersionError

SUPPORTED = ("2.13", "2.16")  # from, below: as in pyproject.toml; docs/versions.md says what ran on which

# Of objects that torch hands out, by class, called where only an object has it: the code alone does not show
# that they are torch's.
REACHED_THROUGH_OBJECTS = (
    "torch._C._distributed_c10d.ProcessGroup._get_sequence_number_for_group",
    "torch._C._dynamo.eval_frame._CacheEntry.guard_manager",
    "torch._C._dynamo.eval_frame._ExtraState.invalidate",
    "torch._C._dynamo.guards.GuardManager.add_lambda_guard",
    "torch._dynamo.guards.GuardBuilder.get",
    "torch._dynamo.guards.GuardBuilder.get_guard_manager",
    "torch._guards.GuardsContext().dynamo_guards",
    "torch._guards.GuardsSet().add",
    "torch._guards.GuardsSet().inner",
    "torch._guards.GuardsSet().source_to_guards",
)

# By the package that uses them. The passes' names do without Dynamo, which takes seconds to import.
INTERNALS: dict[str, tuple[str, ...]] = {
    "oproj_pass.passes": (
        "torch._C.DisableTorchFunctionSubclass",
        "torch._C._VariableFunctions",
        "torch._C._distributed_c10d._resolve_process_group",
        "torch._C._nn",
        "torch._dispatch.python.enable_python_dispatcher",
        "torch._guards.TracingContext.try_get",
        "torch._ops.HigherOrderOperator",
        "torch._ops.OpOverload",
        "torch._ops.OpOverloadPacket",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch.distributed.distributed_c10d._get_group_tag",
        "torch.ops._c10d_functional.all_gather_into_tensor.default",
        "torch.ops._c10d_functional.all_to_all_single.default",
        "torch.ops._c10d_functional.reduce_scatter_tensor.default",
        "torch.ops._c10d_functional.wait_tensor.default",
        "torch.ops.aten._assert_tensor_metadata.default",
        "torch.ops.aten._to_copy.default",
    ),
    "oproj_pass": (
        "torch.Tensor._is_view",
        "torch.Tensor._is_zerotensor",
        "torch._C._InferenceMode",
        "torch._C._disabled_torch_function_impl",
        "torch._C._distributed_c10d._register_process_group",
        "torch._C._dynamo.eval_frame._FrameAction.DEFAULT",
        "torch._C._dynamo.eval_frame._FrameExecStrategy",
        "torch._C._dynamo.eval_frame._get_cache_entries_for_region",
        "torch._C._dynamo.eval_frame._get_total_cache_entry_count",
        "torch._C._dynamo.eval_frame.reset_code",
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        "torch._C._has_storage",
        "torch._C._set_throw_on_mutable_data_ptr",
        "torch._C._storage_Use_Count",
        "torch._TorchCompileInductorWrapper",
        "torch._dynamo.aot_compile_types.SerializableCallable",
        "torch._dynamo.backends.registry.list_backends",
        "torch._dynamo.backends.registry.lookup_backend",
        "torch._dynamo.config.accumulated_recompile_limit",
        "torch._dynamo.config.automatic_dynamic_local_pgo",
        "torch._dynamo.config.automatic_dynamic_remote_pgo",
        "torch._dynamo.config.automatic_dynamic_shapes",
        "torch._dynamo.config.fail_on_recompile_limit_hit",
        "torch._dynamo.config.patch",
        "torch._dynamo.config.recompile_limit",
        "torch._dynamo.config.run_gc_after_compile",
        "torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER",
        "torch._dynamo.convert_frame.FRAME_COUNTER",
        "torch._dynamo.convert_frame.has_tensor_in_frame",
        "torch._dynamo.convert_frame.input_codes.seen",
        "torch._dynamo.disable",
        "torch._dynamo.eval_frame.OptimizeContext",
        "torch._dynamo.eval_frame._callback_from_stance",
        "torch._dynamo.eval_frame._debug_get_cache_entry_list",
        "torch._dynamo.eval_frame._stance.stance",
        "torch._dynamo.eval_frame.cached_backends.pop",
        "torch._dynamo.eval_frame.innermost_backend",
        "torch._dynamo.exc.BackendCompilerFailed",
        "torch._dynamo.exc.FailOnRecompileLimitHit",
        "torch._dynamo.exc.InvalidBackend",
        "torch._dynamo.exc.RestartAnalysis",
        "torch._dynamo.exc.ShortenTraceback",
        "torch._dynamo.exc.UncapturedHigherOrderOpError",
        "torch._dynamo.guards.DeletedGuardManagerWrapper",
        "torch._dynamo.guards.get_guard_fail_reason",
        "torch._dynamo.optimize",
        "torch._dynamo.pgo.CodeState",
        "torch._dynamo.pgo._CODE_STATE",
        "torch._dynamo.pgo._INIT_CODE_STATE",
        "torch._dynamo.symbolic_convert.get_funcname",
        "torch._dynamo.trace_rules.check",
        "torch._dynamo.types.ConvertFrameReturn",
        "torch._dynamo.utils.counters.clear",
        "torch._dynamo.utils.counters.update",
        "torch._dynamo.utils.graph_break_reasons.clear",
        "torch._foreach_copy_",
        "torch._functorch.config.force_autograd_cache",
        "torch._functorch.config.patch",
        "torch._guards.ChainedSource",
        "torch._guards.Guard",
        "torch._guards.Source",
        "torch._has_compatible_shallow_copy_type",
        "torch._inductor.config.get_config_copy",
        "torch._int_mm",
        "torch._logging._internal.trace_structured",
        "torch._scaled_mm",
        "torch._scaled_mm_v2",
        "torch.autograd.profiler._is_profiler_enabled",
        "torch.distributed.distributed_c10d._find_or_create_pg_by_ranks_and_tag",
        "torch.distributed.distributed_c10d._world.pg_map",
        "torch.nn.Module._call_impl",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
        "torch.utils._pytree.tree_flatten",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map_only",
        "torch.utils._pytree.tree_unflatten",
        "torch.utils._sympy.interp.sympy_interp",
        "torch.utils._sympy.reference.PythonReferenceAnalysis",
        *REACHED_THROUGH_OBJECTS,
    ),
}

logger = logging.getLogger(__name__)


@cache
def require_internals(package: str) -> None:
    """Raise ``TorchVersionError`` unless the installed torch has every private name that ``package`` uses.

    ``package``: a key of ``INTERNALS``. A torch outside ``SUPPORTED`` that has them all gets a warning.
    """
    version, (first, beyond) = import_module("torch").__version__, SUPPORTED
    if missing := [name for name in INTERNALS[package] if not _exists(name)]:
        raise TorchVersionError(
            f"torch {version} lacks {len(missing)} of the private names that {package} uses: "
            f"{', '.join(missing)}. Supported are torch>={first},<{beyond}: install one of these, or an "
            "oproj-pass that knows this torch"
        )
    if not first <= version < beyond:
        logger.warning(
            "torch %s has the private names that %s uses, but was not tested: torch>=%s,<%s were",
            *(version, package, first, beyond),
        )


def _exists(name: str) -> bool:
    """Whether a dotted name leads somewhere, submodules that nobody imported yet included."""
    parts = name.split(".")
    found = import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part.removesuffix("()"))
            found = found() if part.endswith("()") else found
        except (AttributeError, TypeError):  # TypeError: an object is not made without arguments any more
            try:
                found = import_module(".".join(parts[:depth]))
            except ImportError:
                return False
    return True
