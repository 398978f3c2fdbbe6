"""Worker processes: they run jobs without this process's main module and without its GPU."""
