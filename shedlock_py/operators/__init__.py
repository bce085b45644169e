"""Operations of people on locks: look at them, check the store, change a record."""
