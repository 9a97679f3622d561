"""The version of this package, for `fdbqueue.__version__`, `fdbqueue --version` and the build."""

__version__ = "0.1.0"
