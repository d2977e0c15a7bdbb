"""What runs kernels: threads, memory, queues.

    system         the operating system behind one interface (os_linux, os_portable)
    native         the thread pool and the entry function, emitted with the kernel language
    launch         native entry points for kernels, number of threads
    errors         the blocks through which kernels report failures
    allocator      caching allocator: size classes whose free lists are plain lists
    queue          queues and events; the CPU's queue is synchronous
    sim            a simulated asynchronous device: own memory, streams, errors at synchronisation

May not know: tensors, graphs, ops. Entry: `launch.entry`, `allocator.size_class`.
"""
