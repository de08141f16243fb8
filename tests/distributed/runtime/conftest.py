import pytest


@pytest.fixture(params=[2, 4])
def ranks(request):
    """A pool of two, then of four gloo ranks."""
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])
