"""IR text to a relocatable ELF object: the only place that loads LLVM.

    code = compile_object(module.text(), target.current())     # bytes of an ELF object
    print(assembly(module.text(), target.AARCH64_NEON))         # any target, whatever this machine is

LLVM is imported by the first call, never by importing this file: a process whose kernels are all on disk
does without (loading it takes some 0.1 s).

Text that does not parse or verify raises `CompileError`. Some mistakes LLVM only finds while it selects
instructions (an intrinsic the target lacks, inline assembly that does not assemble); it then ends the
process. Intrinsics of the instruction table are checked here first; what is not in it is best compiled in a
child process (as `kernel.selftest` does).

May not know: where kernels come from, caches, loading. Entry: `compile_object`.
"""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any

from flambeau.base.record import record
from flambeau.kernel import instructions
from flambeau.kernel.target import Target

# The text of `dsl` and the table of `instructions` are written for this LLVM (llvmlite 0.50).
LLVM_MAJOR = 22


class CompileError(RuntimeError):
    """LLVM rejects a module: a defect of whatever printed it."""


@record
class Compiled:
    """An object and what it took, in seconds."""

    object: bytes
    parse_s: float
    passes_s: float
    codegen_s: float


@functools.cache
def _llvm() -> ModuleType:
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise ImportError(
            f"kernel: llvmlite must be installed to compile a kernel, got {error}. Run: pip install 'llvmlite>=0.50,<0.51'."
        ) from error
    if llvm.llvm_version_info[0] != LLVM_MAJOR:
        raise ImportError(
            f"kernel: LLVM must be version {LLVM_MAJOR}, got {'.'.join(map(str, llvm.llvm_version_info))}. "
            "Run: pip install 'llvmlite>=0.50,<0.51'."
        )
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # inline assembly would end the process without
    return llvm


def load() -> None:
    """Load LLVM now."""
    _llvm()


@functools.cache
def _machine(target: Target) -> Any:
    """LLVM's target machine: position independent, since `elf` loads anywhere, and all within 2 GiB."""
    llvm = _llvm()
    kind = llvm.Target.from_triple(target.triple)
    return kind.create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=2, reloc="pic", codemodel="small"
    )


def _parsed(text: str, target: Target) -> Any:
    llvm = _llvm()
    lacking = instructions.missing(text, target)
    if lacking:
        raise CompileError(
            f"kernel: instructions must be those of {target.cpu}, got {', '.join(lacking)}. Ask `available` first."
        )
    machine = _machine(target)
    header = f'target datalayout = "{machine.target_data}"\ntarget triple = "{target.triple}"\n'
    try:
        module = llvm.parse_assembly(header + text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"kernel: IR must be valid, got {error}. FLAMBEAU_DUMP=dir keeps the text.") from error
    return module


def _run_passes(module: Any, target: Target) -> None:
    llvm = _llvm()
    builder = llvm.create_pass_builder(_machine(target), llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_rotate_pass()
    passes.run(module, builder)


def compile_timed(text: str, target: Target) -> Compiled:
    """As `compile_object`, with the time of each stage."""
    _machine(target)  # loading LLVM is not this kernel's time
    start = time.perf_counter()
    module = _parsed(text, target)
    parsed = time.perf_counter()
    _run_passes(module, target)
    optimised = time.perf_counter()
    code = _machine(target).emit_object(module)
    return Compiled(code, parsed - start, optimised - parsed, time.perf_counter() - optimised)


def compile_object(text: str, target: Target) -> bytes:
    """The ELF object of a module.

    Raises: CompileError if the text does not parse or verify. See the top of this file for what LLVM does not report.
    """
    return compile_timed(text, target).object


def parsed_text(text: str, target: Target) -> str:
    """The module as LLVM understands it, before the passes."""
    return str(_parsed(text, target))


def optimised(text: str, target: Target) -> str:
    """The module's IR after the passes."""
    module = _parsed(text, target)
    _run_passes(module, target)
    return str(module)


def assembly(text: str, target: Target) -> str:
    """The module as assembly text."""
    module = _parsed(text, target)
    _run_passes(module, target)
    return _machine(target).emit_assembly(module)
