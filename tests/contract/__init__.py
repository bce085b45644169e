"""The contract suite on every store and driver."""
