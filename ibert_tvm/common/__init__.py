"""What every package may import: errors, parsers of untrusted files, and writing of outputs."""
