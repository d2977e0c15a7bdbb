"""The kernel layer: a small language that prints LLVM IR, and the way from there to machine code.

    types          scalars and vectors
    dsl            Module, Function, Value: IR as text
    instructions   hardware instructions with their meaning
    target         the machine kernels are made for
    compile        IR text to a relocatable object (the only place that loads LLVM)
    elf            objects to addresses
    cache          a kernel's address by name and parameters, from memory, disk or the compiler

May not know: tensors, graphs, ops, threads. Entry: `cache.address`.
"""
