"""Layer 2: running machine code: the thread pool, the caching allocator, launches through native entry points, queues and events.

May import `base`, `core` and `kernel`. It is given addresses and buffers, and knows neither ops nor graphs.
"""
