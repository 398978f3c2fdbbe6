"""Worker processes: jobs that run beside this process, and neither import its main module nor
use its GPU."""
