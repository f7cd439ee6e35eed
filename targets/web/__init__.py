"""WebAssembly: how its files are read, and packages of models for browsers and Node.js."""
