"""Real tasks made of text that is on the machine: nothing is downloaded but Debian's lists."""
