"""Tests of the Gateway may be coroutines: mark them with anyio."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
