"""What `tests.processes.without_torch` finds in the place of torch."""

raise ImportError("this process does without torch")
