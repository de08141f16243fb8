"""Builds a stand-in for CANN's libraries, over which an unmodified torch_npu wheel runs without a device.

1. Collect the names the wheel needs: its libraries' undefined symbols, and those it looks up at run time.
2. The C++ files next to this one define some, each group with a comment on what it fakes and why.
3. The rest is generated: functions that return 0 (success), and zeros for the tables of C++ classes.
4. Link all of it once, under every library name that the wheel opens.

Built once for these sources and this torch_npu, under ``build/``; needs g++ and binutils.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution, version
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).parent
LIBRARY = "libcann_stub.so"
TOOLS = ("g++", "nm", "readelf")
OPENED_AT_RUN_TIME = ("libopapi.so",)
_LOOKED_UP_BY_NAME = re.compile(rb"\0((?:acl|Hccl|hccl)[A-Za-z0-9_]+)(?=\0)")
_CLASS_TABLES = ("_ZTV", "_ZTI", "_ZTS")  # virtual tables and type information: data, not functions


def missing_tools() -> list[str]:
    """The programs that a build needs and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def stub_folder() -> Path:
    """The folder of the built libraries, for ``LD_LIBRARY_PATH``; builds them where they are not yet."""
    folder = HERE / "build" / _key()
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "lock"):  # of all processes that want it, one builds it
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                _build(Path(work)).rename(folder)
    return folder


def needed_symbols(wheel: Path) -> set[str]:
    """What the wheel expects of CANN: undefined names without a version (which system libraries' have)."""
    libraries = sorted(wheel.rglob("*.so"))
    present = _symbols(libraries, "--defined-only")
    torch_libraries = sorted((wheel.parent / "torch" / "lib").glob("*.so*"))
    present |= _symbols(torch_libraries, "--defined-only")
    undefined = {name for name in _symbols(libraries, "--undefined-only") if "@" not in name}
    linked = {name for name in undefined - present if not name.startswith(("Py", "_Py"))}
    core = (wheel / "lib" / "libtorch_npu.so").read_bytes()
    return linked | {name.decode() for name in _LOOKED_UP_BY_NAME.findall(core)}


def library_names(wheel: Path) -> set[str]:
    """The CANN libraries that the wheel links or opens: those that neither it nor torch brings."""
    needed = set(OPENED_AT_RUN_TIME)
    for library in wheel.rglob("*.so"):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+\.so)\]", _output("readelf", "-d", library)))
    brought = {
        path.name for folder in (wheel, wheel.parent / "torch" / "lib") for path in folder.rglob("*.so")
    }
    return needed - brought


def wheel_folder() -> Path:
    """Where torch_npu is installed; it is not imported."""
    return Path(str(distribution("torch_npu").locate_file("torch_npu")))


def _key() -> str:
    digest = hashlib.sha256(version("torch_npu").encode())
    for source in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), Path(__file__)]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(work: Path) -> Path:
    wheel, folder = wheel_folder(), work / "lib"
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        objects = list(compilers.map(lambda source: _compile(source, work), sorted(HERE.glob("*.cpp"))))
    defined = _symbols(objects, "--defined-only", dynamic=False)
    generated = work / "generated.cpp"
    generated.write_text(_generate(needed_symbols(wheel) - defined))
    folder.mkdir()
    objects.append(_compile(generated, work))
    _output("g++", "-shared", f"-Wl,-soname,{LIBRARY}", "-o", folder / LIBRARY, *objects)
    for name in library_names(wheel):
        (folder / name).symlink_to(LIBRARY)
    return folder


def _compile(source: Path, work: Path) -> Path:
    target = work / f"{source.stem}.o"
    _output("g++", "-std=c++17", "-O0", "-fPIC", "-fno-builtin", "-w", "-c", "-o", target, source)
    return target


def _generate(names: Iterable[str]) -> str:
    lines = [
        f"long {name}[64];" if name.startswith(_CLASS_TABLES) else f"long {name}() {{ return 0; }}"
        for name in sorted(names)
    ]
    return "\n".join(['extern "C" {', *lines, "}", ""])


def _symbols(libraries: Iterable[Path], kind: str, dynamic: bool = True) -> set[str]:
    listed = _output("nm", *(["-D"] if dynamic else []), kind, *libraries)
    fields = [line.split() for line in listed.splitlines()]
    return {parts[-1] for parts in fields if len(parts) >= 2 and parts[-2] not in ("w", "v")}


def _output(*command: object) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed while building the CANN stub:\n{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    print(stub_folder())
