"""The version of this project."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ibert-tvm")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"
