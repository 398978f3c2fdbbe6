"""Where schedules run: executors, the pinned slab, streams and events, the profiler."""
