"""Which Dynamo backend compiles the rewritten graph, and with which options of its own.

Everything is checked here, before the graph or a weight is touched: the backend's name, that it loads, each
option's name and value. What an option does is the backend's affair.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.registry import list_backends, lookup_backend
from torch._dynamo.exc import InvalidBackend
from torch._functorch import config as functorch_config
from torch.fx import GraphModule, Node

from oproj_pass.backend import npu_on_cpu
from oproj_pass.config import OProjConfig
from oproj_pass.devices import DEVICES
from oproj_pass.errors import ConfigError
from oproj_pass.suggestion import suggestion

Compiled = Callable[..., Any]
Compiler = Callable[[GraphModule, list[Any]], Compiled]

_ASCEND = {"npugraph_ex": "npugraph_ex", "npu": "torchair"}  # backend: the module behind it


def inner_backend(config: OProjConfig, inputs: Mapping[Node, Any]) -> Compiler:
    """The compiler that ``inner_backend`` names, bound to ``inner_options``.

    ``inputs``: the graph's example inputs, whose devices decide ``"auto"``. Raises ``ConfigError`` for a name
    that is not registered, a backend that does not load, and an option that it does not have or accept.
    """
    devices = {value.device.type for value in inputs.values() if isinstance(value, Tensor)}
    backend = config.inner_backend
    if backend == "auto":
        backend = next((device.inner_backend for name, device in DEVICES.items() if name in devices), "eager")
    options = dict(config.inner_options)
    with _loading(backend):
        compiler = _lookup(backend)
        if backend in _ASCEND:
            compiler = _ascend_compiler(backend, options)
    if backend in _ASCEND and "npu" not in devices:
        npu_on_cpu.register()
    if backend in _ASCEND or not options:
        return compiler
    return _inductor(options) if backend == "inductor" else _with_options(backend, compiler, options)


def _lookup(backend: Any) -> Compiler:
    try:
        return lookup_backend(backend)
    except InvalidBackend:
        raise ConfigError(
            f"option inner_backend = {backend!r}: no Dynamo backend of that name. "
            f"Known: {', '.join(sorted(list_backends(())))}"
        ) from None


def _ascend_compiler(backend: str, options: Mapping[str, Any]) -> Compiler:
    """The compilers' own entry, which takes a configuration object; an option is a field of it."""
    module = import_module(_ASCEND[backend])
    configuration = module.CompilerConfig()
    known = set(_fields(configuration))
    for field, value in _flat(options, known):
        _require_known(backend, field, known)
        *sections, name = field.split(".")
        try:
            setattr(reduce(getattr, sections, configuration), name, value)
        except Exception as error:  # each kind of field has its own
            raise _not_accepted(backend, field, value, error) from None
    return partial(_not_stored, module.get_npu_backend(compiler_config=configuration))


def _not_stored(compiler: Compiler, gm: GraphModule, example_inputs: list[Any]) -> Compiled:
    """Compile past AOTAutograd's cache: `aot_compile` forces it on graphs that it then cannot hold."""
    with functorch_config.patch(force_autograd_cache=False):
        return compiler(gm, example_inputs)


def _fields(section: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names that a section of a compiler's configuration lets one set."""
    for name in section._fixed_attrs:
        value = getattr(section, name)
        if hasattr(value, "_fixed_attrs"):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _flat(options: Mapping[str, Any], known: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by dotted name, however they are nested; a mapping that is itself a value stays one."""
    for name, value in options.items():
        field = f"{prefix}{name}"
        if isinstance(value, Mapping) and any(other.startswith(f"{field}.") for other in known):
            yield from _flat(value, known, f"{field}.")
        else:
            yield field, value


def _inductor(options: dict[str, Any]) -> Compiler:
    known = set(torch._inductor.config.get_config_copy())
    for name in options:
        _require_known("inductor", name.replace("-", "_"), known)
    try:
        # What torch.compile itself makes of `options`; it also checks their types.
        compiler: Compiler = torch._TorchCompileInductorWrapper(None, options, None)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ConfigError(f"option inner_options: inductor: {error}") from None
    return compiler


def _with_options(backend: Any, compiler: Callable[..., Compiled], options: dict[str, Any]) -> Compiler:
    """As Dynamo does: by keyword. Its own small backends take any keyword and ignore it: those take none."""
    parameters = inspect.signature(compiler).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    own = compiler.__module__.startswith("torch._dynamo.")
    if "options" not in parameters and (own or not open_ended):
        raise ConfigError(
            f"option inner_options = {options}: inner_backend = {backend!r} takes no options. Leave "
            "them out, or choose a backend that has them (npugraph_ex, npu, inductor)."
        )
    return partial(compiler, options=options)


def _require_known(backend: str, name: str, known: set[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"option inner_options: {backend} has no option {name!r}: {suggestion(name, known)}"
        )


def _not_accepted(backend: str, name: str, value: Any, error: Exception) -> ConfigError:
    return ConfigError(
        f"option inner_options: {backend} does not accept {name} = {value!r}: {str(error).splitlines()[0]}"
    )


@contextmanager
def _loading(backend: Any) -> Iterator[None]:
    """A compiler's parts load one by one, at their first use."""
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:
        cause = str(error).splitlines()[0]
        raise ConfigError(
            f"option inner_backend = {backend!r} is installed but does not load: {cause}. "
            "On an NPU, source CANN's set_env.sh first; npu (torchair) and npugraph_ex need a process each."
        ) from error
