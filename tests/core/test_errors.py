import pickle

import pytest

import shedlock_py
from shedlock_py import LockNotAcquired, ProviderError, ProviderUnreachable, ShedLockError, Skipped

ERRORS = [value for value in vars(shedlock_py).values() if isinstance(value, type) and issubclass(value, ShedLockError)]


def test_every_error_is_a_shedlock_error_of_its_kind() -> None:
    assert {error.__name__: error.__base__.__name__ for error in ERRORS if error.__base__} == {
        "ShedLockError": "Exception",
        "ConfigurationError": "ShedLockError",
        "ProviderNotConfigured": "ConfigurationError",
        "ProviderError": "ShedLockError",
        "ProviderUnreachable": "ProviderError",
        "LeaseError": "ShedLockError",
        "LeaseLostError": "LeaseError",
        "NotLocked": "LeaseError",
        "LockNotAcquired": "ShedLockError",
        "TaskNotDone": "ShedLockError",
    }
    assert issubclass(shedlock_py.ConfigurationError, ValueError)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_survives_pickling(error: type[ShedLockError]) -> None:
    if issubclass(error, ProviderError):
        made: ShedLockError = error("no reply", operation="acquire", lock_name="job")
    elif issubclass(error, LockNotAcquired):
        made = error(Skipped("job", "held", "web-1:7"))
    else:
        made = error("no reply")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(made, protocol))
        assert type(back) is error
        assert str(back) == str(made)
        assert vars(back) == vars(made)


def test_a_hint_is_data_and_survives_pickling() -> None:
    error = ProviderError("acquire: no such table", operation="acquire", lock_name="job", hint="create the table")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert (same.message, same.hint) == ("acquire: no such table", "create the table")
        assert str(same) == "acquire: no such table — create the table"
        assert repr(same) == repr(error)
    error = ProviderUnreachable("no reply", operation="prune")
    assert (error.operation, error.lock_name, error.hint, str(error)) == ("prune", None, None, "no reply")
