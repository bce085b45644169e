"""The former place of these names. Providers that were written with the kit before import ``Claim`` from here."""

from shedlock_py.lease import Claim, Clock, Extension, Lease
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest, default_holder, validate_holder, validate_name, validate_prefix

__all__ = [
    "Claim",
    "Clock",
    "Extension",
    "Lease",
    "LockRecord",
    "LockRequest",
    "default_holder",
    "validate_holder",
    "validate_name",
    "validate_prefix",
]
