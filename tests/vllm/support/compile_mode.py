"""Keeps vLLM's own compilation (mode 3) on a CPU, whose platform turns it into mode 2."""

from vllm.compilation.passes.inductor_pass import CustomGraphPass
from vllm.config import CompilationMode
from vllm.platforms.cpu import CpuPlatform


class NoPasses(CustomGraphPass):
    """The least of a pass manager: vLLM's default one names passes that a CPU lacks."""

    def configure(self, config):
        self.config = config

    def add(self, graph_pass):
        pass

    def __call__(self, graph):
        pass

    def uuid(self):
        return "none"


def keep_mode_3():
    """For this process, before an engine is built."""
    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, vllm_config):
        compilation = vllm_config.compilation_config
        asked = compilation.mode, compilation.backend
        original(cls, vllm_config)
        if asked[0] == CompilationMode.VLLM_COMPILE:
            compilation.mode, compilation.backend = asked
            compilation.compile_sizes = []

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    CpuPlatform.get_pass_manager_cls = classmethod(lambda cls: f"{__name__}.{NoPasses.__qualname__}")
