"""creditbench: does a credit-assignment method learn faster, by how much, and at what cost."""

__version__ = "0.1.0"
